// One attempt to serve a request: the two servers it was sent to, and how far its KV is.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/cluster/kv_custody.hpp"
#include "sim/cluster/network.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::cluster {

struct Journey {
  workloads::TraceRequest request;    // its index is that of its row
  std::size_t prefill = 0;            // servers
  std::optional<std::size_t> decode;  // absent: not chosen yet
  std::int64_t attempt = 0;

  bool has_room = false;  // the decode side waits for its KV
  bool open = false;      // the transfer is set up
  bool prompt_done = false;
  bool handed_over = false;  // all KV has arrived, or never will; the prefill side is out of it
  Tokens ready;              // computed by the prefill side and wanted by the other
  Tokens sent;               // of them, those that left
  std::optional<FlowId> flow;
  KvShares shares{};
  SimTime prompt_done_at;
};

}  // namespace oomcast::cluster
