//! IKEv1: an exchange of other implementations with every intermediate value, and stories of two
//! endpoints.

mod hostile;
mod stories;
mod vectors;
