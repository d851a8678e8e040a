//! Entry points of fuzz targets for private interfaces. Each runs one input, and panics when a
//! property does not hold.

use vici::Message;

use crate::config::{Gateway, Outside, load_authority, load_connection, load_pool, load_shared, syntax::Section};
pub use crate::control::fuzzing::vici_commands;
pub use crate::psp_keys::fuzzing::peer as psp_peer;
pub use crate::psp_keys::link::fuzzing::link as psp_link;
pub use crate::psp_keys::service::fuzzing::service as psp_service;
pub use crate::state::check_record as state_file;
pub use credentials::fuzzing::{eap, private_key};

/// Parses a vici message as each of the `load-*` commands. Files are absent.
pub fn vici_load(body: &[u8]) {
    let Ok(message) = Message::parse(body) else { return };
    let (outside, gateway) = (Outside::nothing(), Gateway::default());
    let section = |name| Section::of_message(name, &message);
    let problems = [
        load_connection(&section("load-conn"), &outside, &gateway).err(),
        load_pool(&section("load-pool")).err(),
        load_authority(&section("load-authority"), &outside, &gateway).err(),
        load_shared(&section("load-shared")).err(),
    ];
    for problem in problems.into_iter().flatten() {
        assert!(!problem.to_string().trim().is_empty(), "a refusal without a reason");
    }
}
