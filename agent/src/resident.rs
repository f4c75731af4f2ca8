//! Pages of the program that a daemon which waits does not use are given back.
//!
//! The kernel maps sixteen pages of a file for each that is touched (Linux, `fault_around_bytes`), so that after a start
//! nearly all of the program is in memory, of which a waiting daemon uses a fifth. What is wanted again comes from the file,
//! most often from the page cache.

use std::{ffi::c_void, fs, ops::Range, ptr::without_provenance_mut};

use rustix::mm::{Advice, madvise};

/// Where this program's own instructions are.
pub(crate) struct Program(Vec<Range<usize>>);

impl Program {
    pub(crate) fn of_this_process() -> Self {
        let own = fs::read_link("/proc/self/exe").ok();
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self(match own.as_deref().and_then(std::path::Path::to_str) {
            Some(own) => executable(&maps, own),
            None => Vec::new(),
        })
    }

    pub(crate) fn give_back(&self) {
        for part in &self.0 {
            let start: *mut c_void = without_provenance_mut(part.start);
            #[expect(unsafe_code, reason = "no safe wrapper knows that nothing is lost by it")]
            // SAFETY: these pages hold the program as it is in its file, and nobody can write to them: whoever comes to one
            // next finds the same.
            let given_back = unsafe { madvise(start, part.len(), Advice::LinuxDontNeed) };
            if let Err(err) = given_back {
                log::debug!(error:% = err; "Pages of the program could not be given back");
            }
        }
    }
}

/// The parts of a file that are mapped to be executed and not to be written. What the linker has adjusted is in others.
fn executable(maps: &str, file: &str) -> Vec<Range<usize>> {
    let part = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (range, access) = (words.next()?, words.next()?);
        let name = words.nth(3)?.trim_start();
        let (from, to) = range.split_once('-')?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        let wanted = access == "r-xp" && name == file;
        Some(address(from)?..address(to)?).filter(|range| wanted && range.start < range.end)
    };
    maps.lines().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0305000 r--p 00000000 fe:00 131 /usr/bin/my daemon
55d0c0305000-55d0c0a37000 r-xp 00305000 fe:00 131                        /usr/bin/my daemon
55d0c0a38000-55d0c0ad0000 r--p 00a37000 fe:00 131                        /usr/bin/my daemon
55d0c0ad0000-55d0c0ad4000 rw-p 00acf000 fe:00 131                        /usr/bin/my daemon
55d0c1000000-55d0c1069000 rw-p 00000000 00:00 0                          [heap]
7f0000028000-7f000017e000 r-xp 00028000 fe:00 77                         /usr/lib/libc.so.6
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
nonsense
";

    #[test]
    fn only_what_is_executed_of_the_program_itself_is_given_back() {
        let found = executable(MAPS, "/usr/bin/my daemon");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0], 0x55d0_c030_5000..0x55d0_c0a3_7000);
        assert!(executable(MAPS, "/usr/bin/other").is_empty());
    }

    #[test]
    fn this_process_goes_on_after_it() {
        let program = Program::of_this_process();
        assert!(!program.0.is_empty());
        for _ in 0..3 {
            program.give_back();
            let sum: u64 = std::hint::black_box(1..=1000).sum();
            assert_eq!(sum, 500_500);
        }
        let threads: Vec<_> = (0..4)
            .map(|n| std::thread::spawn(move || format!("{n:03}")))
            .collect();
        program.give_back();
        let said: Vec<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(said, ["000", "001", "002", "003"]);
    }
}
