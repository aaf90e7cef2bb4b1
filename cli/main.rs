//! The toolwarden command line.

use toolwarden_tools::effects::processes::shim::enter_if_asked;

fn main() {
    enter_if_asked();
}
