// Vidur's processed traces, with arrivals or as plain pairs of lengths.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat vidur() {
  FlatFormat format;
  format.name = "vidur";
  format.about = "Vidur traces; seconds, or lengths without arrivals";
  format.required = {"num_prefill_tokens", "num_decode_tokens"};
  format.arrival = "arrived_at";
  format.input = "num_prefill_tokens";
  format.output = "num_decode_tokens";
  return format;
}

}  // namespace oomcast::workloads::formats
