//! Names of what IKEv1 counts ([`Event::Count`](crate::output::Event::Count)). Counters that both
//! versions have, such as those of Child SAs, are those of IKEv2.

/// One constant per counter, and the table of them all.
macro_rules! counters {
    ($($name:ident = $text:literal $doc:literal;)*) => {
        $(#[doc = $doc] pub(crate) const $name: &str = $text;)*

        /// Name and meaning of every counter of IKEv1.
        pub(crate) const COUNTERS: &[(&str, &str)] = &[$(($text, $doc)),*];
    };
}

counters! {
    MAIN_RECEIVED = "ikev1_main_requests" "First messages of main mode.";
    AGGRESSIVE_RECEIVED = "ikev1_aggressive_requests" "First messages of aggressive mode.";
    AGGRESSIVE_REFUSED = "ikev1_aggressive_refused" "First messages of aggressive mode that no connection permits.";
    MAIN_INVALID = "ikev1_main_invalid" "Messages of phase 1 that break a rule.";
    NO_CONNECTION = "ikev1_no_connection" "First messages between addresses that no connection with `version = 1` names.";
    NO_PROPOSAL = "ikev1_no_proposal" "First messages refused with NO_PROPOSAL_CHOSEN.";
    EVICTED = "ikev1_half_open_evicted" "Half-open ISAKMP SAs that newer ones replaced before their initiators had proved their addresses.";
    BLOCKED = "ikev1_blocked" "Messages of phase 1 dropped because of half-open ISAKMP SAs.";
    REFUSED_EXCHANGE = "ikev1_exchange_refused" "Messages of exchanges that are not supported.";
    KEY_MISMATCH = "ikev1_psk_mismatch_or_corrupt" "Messages of phase 1 that the keys did not decrypt: most likely the shared keys differ.";
    DUPLICATE = "ikev1_duplicates" "Repeated messages; those with an answer were answered with the stored one.";
    NOT_AUTHENTIC = "ikev1_messages_not_authentic" "Messages of phase 2 with a wrong hash, in clear text or repeated.";
    UNKNOWN_COOKIE = "ikev1_unknown_cookies" "Messages to ISAKMP SAs that do not exist.";
    QUICK_EARLY = "ikev1_quick_modes_early" "Messages of quick mode before XAuth or Mode Config were done.";
    XAUTH_FAILED = "ikev1_xauth_failed" "Attempts of XAuth with a wrong user name or password, of either end.";
    TRANSACTION_REFUSED = "ikev1_transactions_refused" "Requests of XAuth or Mode Config that the connection does not provide.";
    FRAGMENT_REFUSED = "ikev1_fragments_refused" "Fragments of messages, or messages made of them, that are not acceptable.";
    SIGNATURES_LIMITED = "ikev1_signatures_limited" "Signatures of a peer that were not verified because several of the same phase 1 were wrong.";
    QUICK_LIMITED = "ikev1_quick_modes_limited" "First messages of quick mode dropped because too many were under way.";
}
