//! The key service of PSP: frames in a row as they come out of TLS, and the short form. A parsed
//! message should be emitted to the same bytes.

#![no_main]

use gateway::psp_keys::fizz::Short;
use gateway::psp_keys::message::{Message, frame_len};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some(len)) = frame_len(rest) {
        let Some(frame) = rest.get(..len) else { break };
        rest = &rest[len..];
        let Ok(message) = Message::parse(frame) else { continue };
        let _ = format!("{message:?}");
        assert_eq!(Message::parse(&message.emit()), Ok(message));
    }
    if let Ok(Some((message, len))) = Short::parse(bytes) {
        let again = message.emit();
        assert_eq!(again.len(), len);
        assert_eq!(Short::parse(&again), Ok(Some((message, len))));
    }
});
