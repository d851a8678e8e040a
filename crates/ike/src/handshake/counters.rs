//! Names of what endpoint and handshakes count ([`Event::Count`](crate::output::Event::Count)).

/// One constant per counter, and the table of them all.
macro_rules! counters {
    ($($name:ident = $text:literal $doc:literal;)*) => {
        $(#[doc = $doc] pub(crate) const $name: &str = $text;)*

        /// Name and meaning of every counter of endpoint, message layer and handshakes.
        pub(crate) const COUNTERS: &[(&str, &str)] = &[$(($text, $doc)),*];
    };
}

counters! {
    MALFORMED = "ike_malformed" "Datagrams that are no IKE messages.";
    VERSION = "ike_version_refused" "Messages of an unsupported IKE version.";
    UNKNOWN_SPI = "ike_unknown_spi" "Messages to IKE SAs that do not exist.";
    INIT_RECEIVED = "ike_init_requests" "IKE_SA_INIT requests, retransmissions included.";
    INIT_NO_CONNECTION = "ike_init_no_connection" "IKE_SA_INIT requests between addresses that no connection names.";
    INIT_NO_PROPOSAL = "ike_init_no_proposal" "IKE_SA_INIT requests refused with NO_PROPOSAL_CHOSEN.";
    INIT_INVALID_KE = "ike_init_invalid_ke" "IKE_SA_INIT requests answered with INVALID_KE_PAYLOAD.";
    INIT_INVALID = "ike_init_invalid" "IKE_SA_INIT requests that break a rule.";
    INIT_BLOCKED = "ike_init_blocked" "IKE_SA_INIT requests dropped because of half-open IKE SAs, or because the gateway drains.";
    COOKIE_SENT = "ike_cookies_sent" "Cookies requested from initiators.";
    COOKIE_WRONG = "ike_cookies_wrong" "Cookies that were not made here or too long ago.";
    HALF_OPEN_TIMEOUT = "ike_half_open_timeout" "Handshakes that initiators did not finish in time.";
    IKE_UP = "ike_up" "IKE SAs that came up by authentication.";
    IKE_FAILED = "ike_failed" "Handshakes that failed on either side.";
    AUTH_FAILED = "ike_authentication_failed" "Peers that could not be authenticated.";
    AUTH_REFUSED = "ike_authentication_refused" "Peers that could not authenticate this host.";
    RETRIED = "ike_init_tried_again" "Handshakes retried because of `keyingtries`.";
    REDIRECTED = "ike_init_redirected" "Redirections followed during handshakes.";
    NOT_AUTHENTIC = "ike_messages_not_authentic" "Messages with a failed integrity check.";
    MISDIRECTED = "ike_messages_misdirected" "Messages with SPIs of two IKE SAs or the wrong role.";
    OUT_OF_ORDER = "ike_requests_out_of_order" "Requests outside of the window or not for the state of the IKE SA.";
    ANSWERED_AGAIN = "ike_requests_answered_again" "Retransmitted requests answered from the cache.";
    INTERNAL = "ike_internal_errors" "Steps of IKE SAs that only a defect of Weir can cause; the log names them.";
    TOWARDS_LIMITED = "ike_trap_peers_limited" "Packets that started no handshake with their destination, because 64 others were under way.";
    TOWARDS_NOBODY = "ike_trap_no_peer" "Packets that started no handshake, because their destination is no peer or their source not this host.";
    RETRANSMISSIONS = "ike_retransmissions" "Requests sent again.";
}
