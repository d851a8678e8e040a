//! Shortens ELF object files by functions at their end that nothing calls.
//!
//! The linker takes a section as a whole, and assembly has all functions of a file in one. Those at
//! its end can be cut off without a change to the others: the section gets shorter, the relocations
//! of what was cut are removed, and its symbols become undefined.

use std::ops::Range;

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 24;
const SHT_SYMTAB: u64 = 2;
const SHT_RELA: u64 = 4;
const SHF_ALLOC: u64 = 2;
const SHN_UNDEF: u16 = 0;
const SHN_ABS: u16 = 0xfff1;
const STB_GLOBAL: u8 = 1;

/// An object file without some of its functions.
pub(crate) struct Shortened {
    pub(crate) object: Vec<u8>,
    /// A function that it still has.
    pub(crate) kept: String,
    /// Functions that it had.
    pub(crate) cut: Vec<String>,
}

/// A section header, by the position of its fields.
struct Section {
    at: usize,
    kind: u64,
    flags: u64,
    offset: usize,
    size: usize,
    link: usize,
    info: usize,
}

/// A relocatable object of x86-64.
struct Object<'a> {
    bytes: &'a [u8],
    sections: Vec<Section>,
    /// Index of `.text`.
    code: usize,
    /// Positions of the entries of the symbol table.
    symbols: Vec<usize>,
    /// Position of their names.
    strings: usize,
}

impl<'a> Object<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.get(..HEADER_BYTES)?;
        // 64 bits, little endian, version 1; relocatable; x86-64.
        if !header.starts_with(b"\x7fELF\x02\x01\x01") || header[16..20] != [1, 0, 62, 0] {
            return None;
        }
        let count = word(bytes, 60, 2)? as usize;
        let sections: Vec<Section> = (0..count).map(|i| section(bytes, i)).collect::<Option<_>>()?;
        let names = sections.get(word(bytes, 62, 2)? as usize)?.offset;
        let is_code = |section: &Section| {
            word(bytes, section.at, 4).and_then(|name| text(bytes, names, name)).is_some_and(|name| name == ".text")
        };
        let code = sections.iter().position(is_code)?;
        let table = sections.iter().find(|section| section.kind == SHT_SYMTAB)?;
        let symbols = 0..table.content(bytes)?.len() / SYMBOL_BYTES;
        let symbols = symbols.map(|i| table.offset + i * SYMBOL_BYTES).collect();
        let strings = sections.get(table.link)?.offset;
        Some(Self { bytes, sections, code, symbols, strings })
    }

    /// Position in `.text` of the symbol at `at` of the file; `None` if it is elsewhere.
    fn in_code(&self, at: usize) -> Option<usize> {
        let here = word(self.bytes, at + 6, 2)? == self.code as u64;
        here.then(|| word(self.bytes, at + 8, 8)).flatten().map(|value| value as usize)
    }

    fn is_global(&self, at: usize) -> bool {
        self.bytes.get(at + 4).is_some_and(|info| info >> 4 == STB_GLOBAL)
    }

    /// Global functions with their positions in `.text`, in this order.
    fn functions(&self) -> Vec<(usize, String)> {
        let function = |at: &usize| {
            let value = self.in_code(*at).filter(|_| self.is_global(*at))?;
            Some((value, text(self.bytes, self.strings, word(self.bytes, *at, 4)?)?))
        };
        let mut functions: Vec<_> = self.symbols.iter().filter_map(function).collect();
        functions.sort();
        functions
    }

    /// The relocations of `section` without those of what starts at `end` of `.text`. `None` if one
    /// of the others refers to that.
    fn relocations(&self, section: &Section, end: usize) -> Option<Vec<u8>> {
        let entries = section.content(self.bytes)?.chunks_exact(RELOCATION_BYTES);
        let stays = |entry: &&[u8]| section.info != self.code || word(entry, 0, 8) < Some(end as u64);
        let kept: Vec<&[u8]> = entries.filter(stays).collect();
        // Debug information may.
        let loaded = self.sections.get(section.info)?.flags & SHF_ALLOC != 0;
        for entry in kept.iter().filter(|_| loaded) {
            let symbol = *self.symbols.get(word(entry, 12, 4)? as usize)?;
            let addend = word(entry, 16, 8)? as usize;
            if self.in_code(symbol).is_some_and(|at| at >= end || (at.wrapping_add(addend) as i64) >= end as i64) {
                return None;
            }
        }
        Some(kept.concat())
    }
}

/// Cuts the functions at the end of `.text` for which `unused` is true. `None` if there are none,
/// if the file is not a relocatable object of x86-64, or if one of the others may jump into them.
pub(crate) fn shorten(bytes: &[u8], unused: impl Fn(&str) -> bool) -> Option<Shortened> {
    let object = Object::parse(bytes)?;
    let functions = object.functions();
    let last_kept = functions.iter().rposition(|(_, name)| !unused(name))?;
    let (kept, cut) = functions.split_at(last_kept + 1);
    let end = cut.first()?.0;
    let code = &object.sections[object.code];
    if kept.last()?.0 == end || jumps_into(code.content(bytes)?, end..code.size) {
        return None;
    }
    let mut shorter = bytes.to_vec();
    for section in object.sections.iter().filter(|section| section.kind == SHT_RELA) {
        let relocations = object.relocations(section, end)?;
        set(&mut shorter, section.offset, &relocations);
        set(&mut shorter, section.at + 32, &(relocations.len() as u64).to_le_bytes());
    }
    set(&mut shorter, code.at + 32, &(end as u64).to_le_bytes());
    for &at in object.symbols.iter().filter(|at| object.in_code(**at).is_some_and(|value| value >= end)) {
        let index = if object.is_global(at) { SHN_UNDEF } else { SHN_ABS };
        set(&mut shorter, at + 6, &index.to_le_bytes());
        set(&mut shorter, at + 8, &[0; 16]);
    }
    let cut = cut.iter().map(|(_, name)| name.clone()).collect();
    Some(Shortened { object: shorter, kept: kept.last()?.1.clone(), cut })
}

/// Returns whether an instruction before `cut` may refer to an address in it: a jump, a call or an
/// address relative to the instruction. Bytes that only look like one count as well.
fn jumps_into(code: &[u8], cut: Range<usize>) -> bool {
    let target = |next: usize, distance: i64| cut.contains(&usize::try_from(next as i64 + distance).unwrap_or(0));
    (0..cut.start).any(|at| {
        let byte = |i: usize| code.get(at + i).copied().unwrap_or(0);
        let near = |i: usize| {
            let bytes = code.get(at + i..at + i + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.is_some_and(|bytes| target(at + i + 4, i32::from_le_bytes(bytes).into()))
        };
        match byte(0) {
            // JMP and CALL; LEA relative to RIP; Jcc.
            0xe8 | 0xe9 => near(1),
            0x8d if byte(1) & 0xc7 == 0x05 => near(2),
            0x0f if byte(1) & 0xf0 == 0x80 => near(2),
            0xeb | 0x70..=0x7f => target(at + 2, (byte(1) as i8).into()),
            _ => false,
        }
    })
}

impl Section {
    fn content<'a>(&self, object: &'a [u8]) -> Option<&'a [u8]> {
        object.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

fn section(object: &[u8], index: usize) -> Option<Section> {
    let at = (word(object, 40, 8)? as usize).checked_add(index * SECTION_BYTES)?;
    let field = |offset: usize, len: usize| word(object, at.checked_add(offset)?, len);
    Some(Section {
        at,
        kind: field(4, 4)?,
        flags: field(8, 8)?,
        offset: field(24, 8)? as usize,
        size: field(32, 8)? as usize,
        link: field(40, 4)? as usize,
        info: field(44, 4)? as usize,
    })
}

/// A little-endian number of at most 8 bytes.
fn word(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(len)?).map(|bytes| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// The name at `name` of a table at `strings`; it ends with a zero.
fn text(bytes: &[u8], strings: usize, name: u64) -> Option<String> {
    let rest = bytes.get(strings.checked_add(name as usize)?..)?;
    Some(String::from_utf8_lossy(rest.split(|byte| *byte == 0).next()?).into_owned())
}
