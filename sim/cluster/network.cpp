#include "sim/cluster/network.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/error.hpp"

namespace oomcast::cluster {
namespace {

constexpr double kNanosPerSecond = 1e9;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();
// A flow so slow ends beyond any run.
constexpr double kMostNanos = 4e18;

double nanos_of(FineSpan span) {
  return std::ldexp(static_cast<double>(span.ticks()), -FineSpan::kFractionBits);
}

}  // namespace

LinkId Network::add_link(double bytes_per_second) {
  OOMCAST_CHECK(bytes_per_second > 0, "a link of {} bytes a second", bytes_per_second);
  links_.emplace_back().rate = bytes_per_second;
  return static_cast<LinkId>(links_.size() - 1);
}

void Network::set_rate(LinkId link, double bytes_per_second, FineSpan now) {
  at(link).rate = bytes_per_second;
  share(now);
}

FlowId Network::start(const Path& path, Bytes bytes, FineSpan now) {
  OOMCAST_CHECK(bytes > Bytes{0}, "a flow of {} bytes", bytes.count());
  const FlowId id{next_++};
  Flow& flow = flows_[id];
  flow.path = path;
  flow.bytes = bytes;
  flow.left = static_cast<double>(bytes.count());
  flow.since = now;
  flow.rate = -1;  // none so far
  for (const LinkId link : path) {
    at(link).most = std::max(at(link).most, ++at(link).flows);
  }
  share(now);
  return id;
}

void Network::extend(FlowId id, Bytes bytes, FineSpan now) {
  Flow& flow = flows_.at(id);
  settle(flow, now);
  flow.bytes += bytes;
  flow.left += static_cast<double>(bytes.count());
  set(flow, flow.rate, now);
}

void Network::cancel(FlowId id, FineSpan now) {
  leave(flows_.at(id));
  flows_.erase(id);
  share(now);
}

std::optional<FineSpan> Network::next_end() const {
  std::optional<FineSpan> next;
  for (const auto& [id, flow] : flows_) {
    if (flow.end && (!next || *flow.end < *next)) {
      next = flow.end;
    }
  }
  return next;
}

std::vector<FlowId> Network::take_ended(FineSpan now) {
  std::vector<FlowId> ended;
  for (auto place = flows_.begin(); place != flows_.end();) {
    const Flow& flow = place->second;
    if (!flow.end || *flow.end > now) {
      ++place;
      continue;
    }
    for (const LinkId link : flow.path) {
      at(link).moved += flow.bytes;
    }
    leave(flow);
    ended.push_back(place->first);
    place = flows_.erase(place);
  }
  if (!ended.empty()) {
    share(now);
  }
  return ended;
}

void Network::leave(const Flow& flow) {
  for (const LinkId link : flow.path) {
    --at(link).flows;
  }
}

void Network::share(FineSpan now) {
  for (Link& link : links_) {
    link.left = link.rate;
    link.open = link.flows;
  }
  std::size_t open = flows_.size();
  for (auto& [id, flow] : flows_) {
    flow.open = true;
  }
  while (open > 0) {
    double least = kUnlimited;
    for (const Link& link : links_) {
      if (link.open > 0) {
        least = std::min(least, std::max(link.left, 0.0) / static_cast<double>(link.open));
      }
    }
    // Those on a link that gives no more than that; without links, all that are left.
    std::vector<bool> full(links_.size());
    for (std::size_t i = 0; i < links_.size(); ++i) {
      full[i] = links_[i].open > 0 && links_[i].left / static_cast<double>(links_[i].open) <= least;
    }
    for (auto& [id, flow] : flows_) {
      const bool ready =
          flow.open &&
          (least == kUnlimited || std::any_of(flow.path.begin(), flow.path.end(), [&](LinkId link) {
             return full[static_cast<std::size_t>(link)];
           }));
      if (!ready) {
        continue;
      }
      flow.open = false;
      --open;
      for (const LinkId link : flow.path) {
        at(link).left -= least;
        --at(link).open;
      }
      if (flow.rate != least) {
        settle(flow, now);
        set(flow, least, now);
      }
    }
  }
}

void Network::settle(Flow& flow, FineSpan now) {
  if (flow.rate > 0 && flow.rate < kUnlimited) {
    flow.left -= flow.rate * nanos_of(now - flow.since) / kNanosPerSecond;
  }
  flow.left = std::max(flow.left, 0.0);
  flow.since = now;
}

void Network::set(Flow& flow, double rate, FineSpan now) {
  flow.rate = rate;
  const double nanos = rate == kUnlimited ? 0
                       : rate > 0         ? flow.left / rate * kNanosPerSecond
                                          : kUnlimited;
  flow.end = nanos < kMostNanos ? std::optional(now + FineSpan::from_nanos(nanos)) : std::nullopt;
}

}  // namespace oomcast::cluster
