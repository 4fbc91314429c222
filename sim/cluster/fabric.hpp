// Where servers stand and what lies between them: nodes of cards, each card's own port, and the
// NICs that the servers of a node share.
//
// A pool's servers fill nodes in order: several small ones share a node, one large server takes
// whole nodes. The cards of a server are alike and send together, so its ports are one link of
// their sum. A path is: the sender's ports, its nodes' NICs, the receiver's nodes' NICs, its ports.
#pragma once

#include <cstdint>
#include <vector>

#include "models/link.hpp"
#include "sim/cluster/network.hpp"

namespace oomcast::cluster {

struct FabricOptions {
  models::LinkSpec link;
  std::int64_t cards_per_node = 8;
  std::int64_t nics_per_node = 8;
};

// A server as the fabric sees it.
struct Placed {
  std::int64_t cards = 1;
  int pool = 0;
  double nvlink_bytes_per_second = 0;  // of one card in one direction
};

class Fabric {
 public:
  // Makes the links; `network` must outlive the fabric. Servers of a pool come one after another.
  Fabric(const FabricOptions& options, const std::vector<Placed>& servers, Network& network);

  [[nodiscard]] Path path(std::size_t from, std::size_t to) const;
  [[nodiscard]] Nanos latency() const { return options_.link.latency; }
  [[nodiscard]] Nanos setup() const { return options_.link.setup; }
  // The server's own ports have this share of their rate from now on.
  void slow(std::size_t server, double share, FineSpan now);

  struct Ports {
    LinkId out{};
    LinkId in{};
    double bytes_per_second = 0;
  };
  [[nodiscard]] const Ports& ports(std::size_t server) const { return servers_[server].own; }
  [[nodiscard]] std::int64_t nodes() const { return nodes_; }

 private:
  struct Server {
    Ports own;
    std::size_t site = 0;  // NICs it sends through; not for links that belong to cards
  };
  [[nodiscard]] Ports add_ports(double bytes_per_second);

  FabricOptions options_;
  Network& network_;
  std::vector<Server> servers_;
  std::vector<Ports> sites_;
  std::int64_t nodes_ = 0;
};

}  // namespace oomcast::cluster
