//! IKEv1: an exchange of other implementations with every intermediate value, and stories of two
//! endpoints.

mod aggressive;
mod cves;
mod dispatch;
mod fragments;
mod hostile;
mod seeds;
mod signatures;
mod states;
mod stories;
mod vectors;
mod xauth;
