//! Names of what tasks count ([`Event::Count`](crate::output::Event::Count)).

/// One constant per counter, and the table of them all.
macro_rules! counters {
    ($($name:ident = $text:literal $doc:literal;)*) => {
        $(#[doc = $doc] pub(crate) const $name: &str = $text;)*

        /// Name and meaning of every counter of an authenticated IKE SA.
        pub(crate) const COUNTERS: &[(&str, &str)] = &[$(($text, $doc)),*];
    };
}

counters! {
    CHILD_UP = "child_up" "Child SAs that came up.";
    CHILD_DOWN = "child_down" "Child SAs that ended, replaced ones left out.";
    CHILD_REKEYED = "child_rekeyed" "Successors of Child SAs that were installed.";
    CHILD_REFUSED = "child_refused" "Requests for Child SAs that this host refused.";
    CHILD_FAILED = "child_failed" "Child SAs that this host requested and did not get.";
    CHILD_COLLISION = "child_rekey_collision" "Child SAs that both ends rekeyed at once.";
    IKE_REKEYED = "ike_rekeyed" "IKE SAs that a rekeying replaced.";
    IKE_REKEY_FAILED = "ike_rekey_failed" "Rekeyings of IKE SAs that failed.";
    IKE_COLLISION = "ike_rekey_collision" "IKE SAs that both ends rekeyed at once.";
    IKE_REAUTH = "ike_reauthentication" "Reauthentications that this host started.";
    IKE_DOWN = "ike_down" "Authenticated IKE SAs that ended, replaced ones left out.";
    IKE_DEAD = "ike_peer_dead" "IKE SAs with an unresponsive peer.";
    TEMPORARY_FAILURE_SENT = "temporary_failure_sent" "Requests that this host put off.";
    TEMPORARY_FAILURE_RECEIVED = "temporary_failure_received" "Requests that a peer put off.";
    LIVENESS_SENT = "liveness_sent" "Liveness checks that this host sent.";
    MOVED = "address_changed" "Changes of the addresses of an IKE SA.";
    INVALID_SYNTAX = "invalid_syntax" "Authenticated messages that break a rule.";
    REDIRECTED = "redirected" "Redirections by a peer.";
    QUEUE_FULL = "task_queue_full" "Requests of this host refused because the task queue was full.";
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = super::COUNTERS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), super::COUNTERS.len());
    }
}
