//! Energy of the processor packages, where the kernel shows RAPL.

use std::fs;
use std::path::{Path, PathBuf};

use super::Unavailable;

/// The package domains of RAPL.
pub struct Energy {
    packages: Vec<Package>,
}

struct Package {
    counter: PathBuf,
    /// Largest value of the counter in microjoules, after which it starts at 0.
    range_uj: u64,
}

impl Energy {
    /// The domains of this machine.
    ///
    /// # Errors
    /// Why there are none.
    pub fn open() -> Result<Self, Unavailable> {
        Self::open_at(Path::new("/sys/class/powercap"))
    }

    fn open_at(root: &Path) -> Result<Self, Unavailable> {
        let none = || Unavailable("the kernel provides no RAPL domain (usual in virtual machines)".to_owned());
        let zones = fs::read_dir(root).map_err(|_| none())?;
        let (mut packages, mut refused) = (Vec::new(), None);
        for zone in zones.flatten().map(|zone| zone.path()) {
            // A package is intel-rapl:0; intel-rapl:0:0 is a part of it. AMD has the same names.
            let name = zone.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(number) = name.strip_prefix("intel-rapl:") else { continue };
            if number.contains(':') {
                continue;
            }
            let counter = zone.join("energy_uj");
            match read_number(&counter) {
                Ok(_) => {
                    let range_uj = read_number(&zone.join("max_energy_range_uj")).unwrap_or(u64::MAX);
                    packages.push(Package { counter, range_uj });
                }
                Err(error) => refused = Some(format!("{}: {error}; run as root", counter.display())),
            }
        }
        match (packages.is_empty(), refused) {
            (false, _) => Ok(Self { packages }),
            (true, Some(why)) => Err(Unavailable(why)),
            (true, None) => Err(none()),
        }
    }

    /// The counters now, in microjoules.
    pub fn read(&self) -> Vec<Option<u64>> {
        self.packages.iter().map(|package| read_number(&package.counter).ok()).collect()
    }

    /// Joules from `before` to `after`; `None` when a counter could not be read. A counter that
    /// wrapped is assumed to have wrapped once.
    pub fn joules(&self, before: &[Option<u64>], after: &[Option<u64>]) -> Option<f64> {
        let packages = self.packages.iter().zip(before.iter().zip(after));
        let each = packages.map(|(package, (before, after))| {
            let (before, after) = ((*before)?, (*after)?);
            Some(if after >= before { after - before } else { after + (package.range_uj - before) })
        });
        each.sum::<Option<u64>>().map(|uj| uj as f64 / 1e6)
    }
}

fn read_number(file: &Path) -> std::io::Result<u64> {
    let text = fs::read_to_string(file)?;
    text.trim().parse().map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidData, "not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_up_and_a_counter_may_start_anew() {
        let root = tempfile::tempdir().unwrap();
        let set = |zone: &str, file: &str, value: u64| {
            fs::create_dir_all(root.path().join(zone)).unwrap();
            fs::write(root.path().join(zone).join(file), format!("{value}\n")).unwrap();
        };
        for zone in ["intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0", "dtpm"] {
            set(zone, "energy_uj", 900);
            set(zone, "max_energy_range_uj", 1000);
        }
        let energy = Energy::open_at(root.path()).unwrap();
        let before = energy.read();
        assert_eq!(before, [Some(900); 2]);
        set("intel-rapl:0", "energy_uj", 950);
        set("intel-rapl:1", "energy_uj", 100);
        let mut joules = energy.joules(&before, &energy.read()).unwrap();
        assert!((joules - 250e-6).abs() < 1e-12, "{joules}");
        fs::remove_file(root.path().join("intel-rapl:1/energy_uj")).unwrap();
        joules = energy.joules(&before, &energy.read()).unwrap_or(-1.0);
        assert_eq!(joules, -1.0);
    }

    #[test]
    fn without_rapl_it_says_so() {
        let empty = tempfile::tempdir().unwrap();
        assert!(Energy::open_at(empty.path()).err().unwrap().to_string().contains("no RAPL"));
        assert!(Energy::open_at(Path::new("/nonexistent")).err().unwrap().to_string().contains("no RAPL"));
    }
}
