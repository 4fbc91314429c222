// The text with which PyTorch reports that a GPU ran out of memory, in the wordings of 1.x to 2.14
// and as people shorten them. What the text leaves out stays empty.
#pragma once

#include <optional>
#include <string_view>

#include "sim/core/units.hpp"

namespace oomcast::logs {

struct TorchOom {
  std::optional<Bytes> tried;
  std::optional<int> gpu;
  std::optional<Bytes> total;
  std::optional<Bytes> free;
  std::optional<Bytes> process;  // this process, what lies outside PyTorch included
  std::optional<Bytes> others;   // all other processes on the card that the text names
  std::optional<Bytes> allowed;  // per-process limit
  std::optional<Bytes> allocated;
  std::optional<Bytes> private_pools;  // the part of `allocated` that lies in graphs' pools
  std::optional<Bytes> unallocated;    // reserved by PyTorch, in no tensor

  friend bool operator==(const TorchOom&, const TorchOom&) = default;

  // Free memory that was missing for the request; 0 if there was enough (a limit, or pieces).
  [[nodiscard]] std::optional<Bytes> short_by() const;
  // The request would have fitted into what PyTorch holds unused and what is free: memory was
  // there, in pieces.
  [[nodiscard]] bool is_fragmented() const;
  // Of this process, but not PyTorch's: context, NCCL, graphs' driver memory.
  [[nodiscard]] std::optional<Bytes> outside_torch() const;
  // Not of this process: named by the text, else what the card's sum leaves.
  [[nodiscard]] std::optional<Bytes> other_processes() const;
};

// nullopt for a line that does not tell how much was asked for.
std::optional<TorchOom> read_torch_oom(std::string_view line);

// "150.00 MiB", "17 bytes", "1.2GiB"; units are powers of 1024 whatever the letters say. nullopt
// for other texts and for sizes beyond 2^53 bytes.
std::optional<Bytes> parse_torch_size(std::string_view text);

}  // namespace oomcast::logs
