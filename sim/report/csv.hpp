// timeline.csv and requests.csv. Instants are seconds with nine digits; bytes are integers.
#pragma once

#include <string>
#include <vector>

#include "sim/core/atomic_output.hpp"
#include "sim/run/record.hpp"

namespace oomcast {

// Columns: time_s, rank, one per class leaf, kv_used/cached/free_bytes, torch_allocated_bytes,
// torch_reserved_bytes, device_used_bytes, pinned_host_bytes, running, waiting, step_tokens,
// preemptions; at the allocator's depth also torch_inactive_split_bytes and torch_segments, empty
// in the rows of the startup; of a cluster kv_held_bytes (KV of requests that is kept for a
// transfer alone) and in_transfer (such requests), likewise; with a host tier host_kv_bytes (of
// pinned_host_bytes, what holds KV), likewise. The leaf columns sum to device_used_bytes in every
// row. The phases of the startup come first, at time 0, in order.
void write_timeline_csv(const std::vector<RankRecord>& ranks, CheckedFile& file);

// Writes each request as its row arrives.
class RequestsCsv final : public RequestSink {
 public:
  explicit RequestsCsv(const std::string& path);
  void row(const RequestRow& row) override;
  void close() { file_.close(); }

 private:
  CheckedFile file_;
  std::string line_;
};

// For runs that keep no file.
class NoRequests final : public RequestSink {
 public:
  void row(const RequestRow& /*row*/) override {}
};

}  // namespace oomcast
