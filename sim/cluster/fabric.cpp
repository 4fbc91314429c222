#include "sim/cluster/fabric.hpp"

#include "sim/core/units.hpp"

namespace oomcast::cluster {

Fabric::Fabric(const FabricOptions& options, const std::vector<Placed>& servers, Network& network)
    : options_(options), network_(network) {
  const models::LinkSpec& link = options_.link;
  const bool shared = link.kind == models::LinkSpec::Kind::kNic;
  int pool = -1;
  std::int64_t room = 0;  // cards left on the node that was begun last
  for (const Placed& server : servers) {
    const double port =
        link.efficiency *
        (link.bytes_per_second > 0 ? link.bytes_per_second : server.nvlink_bytes_per_second);
    if (server.pool != pool || server.cards > room) {
      const std::int64_t nodes = div_ceil(server.cards, options_.cards_per_node);
      nodes_ += nodes;
      room = nodes * options_.cards_per_node;
      pool = server.pool;
      if (shared) {
        sites_.push_back(add_ports(port * static_cast<double>(nodes * options_.nics_per_node)));
      }
    }
    room -= server.cards;
    servers_.push_back({add_ports(port * static_cast<double>(server.cards)),
                        sites_.empty() ? 0 : sites_.size() - 1});
  }
}

Fabric::Ports Fabric::add_ports(double bytes_per_second) {
  return {network_.add_link(bytes_per_second), network_.add_link(bytes_per_second),
          bytes_per_second};
}

Path Fabric::path(std::size_t from, std::size_t to) const {
  const Server& sender = servers_[from];
  const Server& receiver = servers_[to];
  if (sites_.empty()) {
    return {sender.own.out, receiver.own.in};
  }
  return {sender.own.out, sites_[sender.site].out, sites_[receiver.site].in, receiver.own.in};
}

void Fabric::slow(std::size_t server, double share, FineSpan now) {
  const Ports& own = servers_[server].own;
  network_.set_rate(own.out, own.bytes_per_second * share, now);
  network_.set_rate(own.in, own.bytes_per_second * share, now);
}

}  // namespace oomcast::cluster
