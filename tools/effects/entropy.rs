//! Randomness, used for nothing but ids: no decision may depend on it.

use std::cell::RefCell;

/// How many random bytes a thread asks the operating system for at a time: an id a call would be a system call a call.
const BLOCK_BYTES: usize = 1024;
/// Bytes of a number.
const NUMBER_BYTES: usize = 16;
/// Length of an id as text, in bytes.
pub const HEX_ID_BYTES: usize = 2 * NUMBER_BYTES;

/// A source of random numbers.
pub trait Entropy: Send + Sync {
    /// 128 random bits.
    fn random_u128(&self) -> u128;
}

/// The operating system's generator.
#[derive(Debug, Clone, Copy)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    /// # Panics
    /// When the operating system has no randomness to give: nothing unique can be made then.
    fn random_u128(&self) -> u128 {
        BLOCK.with_borrow_mut(|block| {
            if block.at == BLOCK_BYTES {
                fill(&mut block.bytes);
                block.at = 0;
            }
            let mut number = [0; NUMBER_BYTES];
            number.copy_from_slice(&block.bytes[block.at..block.at + NUMBER_BYTES]);
            block.at += NUMBER_BYTES;
            u128::from_ne_bytes(number)
        })
    }
}

/// Random bytes of this thread that were not handed out yet.
struct Block {
    bytes: [u8; BLOCK_BYTES],
    at: usize,
}

thread_local! {
    static BLOCK: RefCell<Block> = const { RefCell::new(Block { bytes: [0; BLOCK_BYTES], at: BLOCK_BYTES }) };
}

#[expect(
    clippy::panic,
    clippy::disallowed_methods,
    reason = "the real side of the entropy port; without entropy no id is unique"
)]
fn fill(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        panic!("the operating system gives no random bytes: {error}");
    }
}

/// A random id as 32 hex digits.
pub fn hex_id(entropy: &dyn Entropy) -> String {
    let mut text = String::with_capacity(HEX_ID_BYTES);
    push_hex_id(&mut text, entropy);
    text
}

/// Adds a random id as 32 hex digits; without formatting, for every call has one.
pub fn push_hex_id(text: &mut String, entropy: &dyn Entropy) {
    let number = entropy.random_u128();
    let digit = |at: usize| char::from_digit((number >> (4 * at)) as u32 & 15, 16).unwrap_or_default();
    text.extend((0..HEX_ID_BYTES).rev().map(digit));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Entropy, SystemEntropy, hex_id};

    struct Fixed(u128);

    impl Entropy for Fixed {
        fn random_u128(&self) -> u128 {
            self.0
        }
    }

    #[test]
    fn ids_are_spelled_as_if_formatted() {
        for number in [0, 1, 0xabc, u128::MAX, u128::MAX / 7, 1 << 127] {
            assert_eq!(hex_id(&Fixed(number)), format!("{number:032x}"));
        }
    }

    #[test]
    fn numbers_of_all_threads_differ() {
        let numbers = || (0..200).map(|_| SystemEntropy.random_u128()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(numbers)).collect();
        let all: BTreeSet<u128> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.len(), 800);
    }
}
