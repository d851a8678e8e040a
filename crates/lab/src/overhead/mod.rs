//! What protection costs besides the cipher, and where: the overhead study.
//!
//! [`measure`] analyses the path by two methods, [`ping()`] sends one packet through it,
//! [`fixed_costs`] compares the no-op path with a line through sizes.

mod fixed;
mod ping;
mod skeleton;
mod stage;
mod study;

pub use fixed::{FixedCost, SizeCost, fixed_costs};
pub use ping::{Fall, Ping, ping};
pub use skeleton::{LADDER, Switches};
pub use stage::{IN, OUT, STEPS, Stage};
pub use study::{Methods, Options, StudyError, SubjectCost, both_methods, measure, methods_explained};

use crypto::{Engine, Suite};
use ipsec::Protocol;

use testbed::pair::{PSP_SUITES, Shape, Subject};

/// The suites of the paper.
pub const PAPER_SUITES: [&str; 3] = ["3des-md5", "aes128-md5", "aes256-md5"];

/// Every protocol with every suite that it has, in tunnel mode (AH in transport mode): those of the
/// paper first.
pub fn every_subject() -> Vec<Subject> {
    let esp = |suite: &str| Subject::new(Protocol::Esp, Shape::Tunnel, suite, Engine::best());
    let mut subjects: Vec<Subject> = PAPER_SUITES.map(esp).into();
    let rest = Suite::all_esp().map(|suite| suite.to_string());
    subjects.extend(rest.filter(|suite| !PAPER_SUITES.contains(&suite.as_str())).map(|suite| esp(&suite)));
    let ah = Suite::all_ah().map(|suite| suite.to_string());
    subjects.extend(ah.map(|suite| Subject::new(Protocol::Ah, Shape::Transport, &suite, Engine::best())));
    let eesp = Suite::all_esp().filter(Suite::is_aead).map(|suite| suite.to_string());
    subjects.extend(eesp.map(|suite| Subject::new(Protocol::Eesp, Shape::Tunnel, &suite, Engine::best())));
    subjects.extend(PSP_SUITES.map(|suite| Subject::new(Protocol::Psp, Shape::Tunnel, suite, Engine::best())));
    subjects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_can_be_built() {
        let subjects = every_subject();
        assert!(subjects.len() > 80, "{}", subjects.len());
        for subject in &subjects {
            // EESP leaves out what its draft does not name.
            if let Err(error) = subject.tables() {
                panic!("{subject:?}: {error}");
            }
        }
    }
}
