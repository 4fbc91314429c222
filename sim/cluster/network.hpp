// Bytes on their way: links with a rate, and flows that share them fairly.
//
// Rates are max-min fair, by progressive filling: the link that leaves its flows least is full
// first, its flows keep that rate, and the others share what is left. A flow's rate changes only
// when flows or links do, so between two such instants its end is known.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/latency/fine_time.hpp"

namespace oomcast::cluster {

enum class LinkId : std::uint32_t {};
enum class FlowId : std::uint64_t {};
using Path = std::vector<LinkId>;

class Network {
 public:
  // `bytes_per_second` > 0.
  LinkId add_link(double bytes_per_second);
  // From `now` on. 0 stops what is on it.
  void set_rate(LinkId link, double bytes_per_second, FineSpan now);
  [[nodiscard]] double rate(LinkId link) const { return at(link).rate; }

  // `bytes` > 0 over all links of `path` at once; a path without links takes no time.
  FlowId start(const Path& path, Bytes bytes, FineSpan now);
  // More bytes behind those under way.
  void extend(FlowId flow, Bytes bytes, FineSpan now);
  // What is under way is lost.
  void cancel(FlowId flow, FineSpan now);

  // When the next flow ends; nullopt: none will.
  [[nodiscard]] std::optional<FineSpan> next_end() const;
  // The flows that end by `now`, in order of their start. Their bytes count as moved.
  std::vector<FlowId> take_ended(FineSpan now);

  [[nodiscard]] std::size_t flows() const { return flows_.size(); }
  [[nodiscard]] Bytes moved(LinkId link) const { return at(link).moved; }
  [[nodiscard]] std::int64_t most_flows(LinkId link) const { return at(link).most; }

 private:
  struct Link {
    double rate = 0;
    Bytes moved;
    std::int64_t flows = 0;
    std::int64_t most = 0;
    // While rates are shared out.
    double left = 0;
    std::int64_t open = 0;
  };
  struct Flow {
    Path path;
    Bytes bytes;      // in all
    double left = 0;  // of them at `since`
    double rate = 0;
    FineSpan since;
    std::optional<FineSpan> end;
    bool open = false;  // while rates are shared out
  };

  [[nodiscard]] Link& at(LinkId link) { return links_[static_cast<std::size_t>(link)]; }
  [[nodiscard]] const Link& at(LinkId link) const { return links_[static_cast<std::size_t>(link)]; }
  void leave(const Flow& flow);
  // Shares the links out anew; flows whose rate stays keep their end.
  void share(FineSpan now);
  static void settle(Flow& flow, FineSpan now);
  static void set(Flow& flow, double rate, FineSpan now);

  std::vector<Link> links_;
  std::map<FlowId, Flow> flows_;
  std::uint64_t next_ = 0;
};

}  // namespace oomcast::cluster
