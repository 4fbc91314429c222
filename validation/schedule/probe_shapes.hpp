// Shapes that the stand-ins of engines' kernels have; the probes and the made-up device share them.
// Those of Llama-3.1-8B (attention) and Qwen3-30B-A3B (experts), in 16 bits.
#pragma once

#include <cstdint>

namespace oomcast::validation {

inline constexpr std::int64_t kHeads = 32;
inline constexpr std::int64_t kKvHeads = 8;
inline constexpr std::int64_t kHeadDim = 128;
inline constexpr std::int64_t kContext = 4096;  // tokens that a decode attends to
inline constexpr std::int64_t kHidden = 2048;
inline constexpr std::int64_t kExpertWidth = 768;
inline constexpr std::int64_t kExperts = 128;
inline constexpr std::int64_t kQuantGroup = 128;   // elements that share a scale
inline constexpr std::int64_t kGemmSide = 8192;    // of the square matrix
inline constexpr std::int64_t kPrefillSplits = 2;  // of a prompt's keys
inline constexpr std::int64_t kGraphCopies = 64;   // graphs held at once, to see below a granule
inline constexpr std::int64_t kGraphPoolBytes = std::int64_t{32} << 20;

inline constexpr std::int64_t kKernelCodeBytes = 64 << 10;  // of each kernel of probe `context`

// Bytes of one token and split: partial output and log-sum-exp in fp32.
inline constexpr std::int64_t kSplitBytes = kHeads * (kHeadDim + 1) * 4;
// Of a routed row: the row, and its index, source and weight.
inline constexpr std::int64_t kPermuteBytes = kHidden * 2 + 3 * 4;
// Gate and up, and their product.
inline constexpr std::int64_t kExpertRowBytes = (2 * kExpertWidth + kExpertWidth) * 2;
// One byte an element and a scale a group.
inline constexpr std::int64_t kQuantisedBytes = kHidden + kHidden / kQuantGroup * 4;
// Of a dispatched token, twice, for sending and receiving.
inline constexpr std::int64_t kDispatchBytes = 2 * kHidden * 2;

}  // namespace oomcast::validation
