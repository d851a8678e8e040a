//! The order of trials: variants that are compared follow each other closely, mirrored, so that
//! drift affects all equally.

use super::Rng;

/// One trial of a plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Step {
    /// Round that it belongs to; trials of one round are compared with each other.
    pub round: u32,
    /// Position in time, from 0.
    pub order: u32,
    /// Index of the variant, from 0.
    pub variant: usize,
}

/// A plan of `rounds` rounds; in each, every variant runs twice: in random order, then in that
/// order backwards.
///
/// With two variants a round is ABBA or BAAB. A drift that is linear over a round adds the same to
/// every variant, because the mean position of each is the middle of the round; random order keeps
/// anything periodic from meeting always the same one. The plan depends on nothing but its
/// arguments, so a seed that is recorded with the trials repeats it.
pub fn mirrored(seed: u64, variants: usize, rounds: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let mut plan = Vec::with_capacity(2 * variants * rounds);
    for round in 0..rounds as u32 {
        let mut forth: Vec<usize> = (0..variants).collect();
        rng.shuffle(&mut forth);
        let back = forth.iter().rev();
        for &variant in forth.iter().chain(back) {
            plan.push(Step { round, order: plan.len() as u32, variant });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_variants_make_abba_and_baab_about_equally_often() {
        let plan = mirrored(9, 2, 1000);
        let rounds: Vec<Vec<usize>> = plan.chunks(4).map(|c| c.iter().map(|s| s.variant).collect()).collect();
        assert!(rounds.iter().all(|r| *r == [0, 1, 1, 0] || *r == [1, 0, 0, 1]));
        let abba = rounds.iter().filter(|r| r[0] == 0).count();
        assert!((420..580).contains(&abba), "{abba}");
        assert!(plan.iter().enumerate().all(|(i, s)| s.order == i as u32 && s.round == i as u32 / 4));
    }

    #[test]
    fn every_variant_stands_in_the_middle_of_a_round_on_average() {
        for round in mirrored(1, 5, 20).chunks(10) {
            for variant in 0..5 {
                let places: Vec<u32> = round.iter().filter(|s| s.variant == variant).map(|s| s.order % 10).collect();
                assert_eq!((places.len(), places.iter().sum::<u32>()), (2, 9));
            }
        }
    }

    #[test]
    fn a_seed_repeats_its_plan() {
        assert_eq!(mirrored(5, 3, 8), mirrored(5, 3, 8));
        assert_ne!(mirrored(5, 3, 8), mirrored(6, 3, 8));
        assert!(mirrored(5, 0, 8).is_empty());
    }
}
