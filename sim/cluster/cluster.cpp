#include "sim/cluster/cluster.hpp"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "sim/cluster/calendar.hpp"
#include "sim/cluster/cluster_json.hpp"
#include "sim/cluster/traffic.hpp"

namespace oomcast::cluster {
namespace {

using Role = KvHandoff::Role;

// The order of events, and what a record gets of them.
class Cluster {
 public:
  Cluster(ClusterSetup setup, workloads::RequestStream& stream, RequestSink& sink,
          const ReplayOptions& options, RunRecord& record)
      : setup_(std::move(setup)),
        options_(options),
        record_(record),
        desk_(stream, sink, options, record.totals, digest_),
        traffic_(setup_, desk_, calendar_) {
    for (std::size_t i = 0; i < setup_.faults.size(); ++i) {
      calendar_.write({since_start(setup_.faults[i].at), Event::Kind::kFault, 0, 0, i});
    }
  }

  void run() {
    record_.outcome = setup_.prefill.plan.outcome().fits() ? setup_.decode.plan.outcome()
                                                           : setup_.prefill.plan.outcome();
    while (record_.outcome.fits() && advance()) {
      if (options_.stop != nullptr && *options_.stop != 0) {
        throw Interrupted();
      }
    }
    finish();
  }

 private:
  // --- time

  // What comes next, and its place among equals.
  enum class Turn : std::uint8_t { kResults, kEvents, kArrival, kSchedule, kNothing };
  struct Next {
    FineSpan at;
    Turn turn = Turn::kNothing;
    std::size_t server = 0;

    void offer(FineSpan when, Turn what, std::size_t who = 0) {
      if (turn == Turn::kNothing || std::tie(when, what) < std::tie(at, turn)) {
        *this = {when, what, who};
      }
    }
  };

  [[nodiscard]] Next next() {
    Next next;
    if (const auto at = outside()) {
      next.offer(*at, Turn::kEvents);
    }
    if (const auto at = desk_.next_arrival()) {
      next.offer(std::max(*at, calendar_.now()), Turn::kArrival);
    }
    for (std::size_t i = 0; i < fleet_.size(); ++i) {
      Server& server = fleet_[i];
      if (server.awake) {
        next.offer(server.loop().next_at(),
                   server.loop().pipeline_full() ? Turn::kResults : Turn::kSchedule, i);
      }
    }
    return next;
  }

  // When network or calendar bring something.
  [[nodiscard]] std::optional<FineSpan> outside() const {
    const auto flow = traffic_.network().next_end();
    const auto event = calendar_.next_at();
    return flow && event ? std::min(flow, event) : flow ? flow : event;
  }

  // False when nothing is left to happen.
  bool advance() {
    const Next turn = next();
    calendar_.go_on(turn.at);
    switch (turn.turn) {
      case Turn::kNothing:
        return false;
      case Turn::kResults:
        fleet_[turn.server].loop().take_results();
        traffic_.hear(turn.server);
        break;
      case Turn::kEvents:
        traffic_.pass_flows();
        while (const auto event = calendar_.take_due()) {
          traffic_.pass(*event);
        }
        break;
      case Turn::kArrival:
        traffic_.arrive(desk_.take());
        break;
      case Turn::kSchedule:
        schedule(turn.server);
        break;
    }
    return true;
  }

  void schedule(std::size_t number) {
    Server& server = fleet_[number];
    EngineLoop& loop = server.loop();
    if (!options_.step_by_step && loop.jump(horizon(number))) {
      return check_failure(number);
    }
    if (!loop.schedule_round() && !loop.failure()) {
      loop.sleep();
      server.awake = false;
    }
    check_failure(number);
    traffic_.hear(number);
  }

  // Nothing can reach the server before. Decode servers do not reach each other but through clients
  // that wait, and through requests that one of them loses.
  [[nodiscard]] std::optional<FineSpan> horizon(std::size_t number) {
    std::optional<FineSpan> until = outside();
    const auto bound = [&until](std::optional<FineSpan> at) {
      if (at && (!until || *at < *until)) {
        until = at;
      }
    };
    bound(desk_.next_arrival());
    for (std::size_t i = 0; i < fleet_.size(); ++i) {
      Server& server = fleet_[i];
      if (i != number && server.awake &&
          (server.role() == Role::kPrefill || desk_.is_closed_loop() || !setup_.faults.empty())) {
        bound(server.loop().next_at());
      }
    }
    return until;
  }

  void check_failure(std::size_t number) {
    if (const std::optional<Outcome>& failure = fleet_[number].loop().failure()) {
      record_.outcome = *failure;
      record_.outcome.rank =
          static_cast<int>(fleet_.first_rank(number)) + failure->rank.value_or(0);
    }
  }

  // --- the end

  // Somebody waits and nothing will ever happen: the engines hang.
  void stall() {
    std::size_t stuck = fleet_.number_of(Role::kDecode, 0);
    while (stuck < fleet_.size() && (!fleet_[stuck].alive || fleet_[stuck].engine().idle())) {
      ++stuck;
    }
    if (stuck == fleet_.size()) {
      record_.outcome.kind = OutcomeKind::kKvTooSmall;
      record_.outcome.message = "requests wait for a prefill server that does not go on";
    } else {
      record_.outcome = fleet_[stuck].engine().stall_outcome();
      record_.outcome.rank = static_cast<int>(fleet_.first_rank(stuck));
    }
    record_.outcome.phase = "runtime";
  }

  void finish() {
    if (record_.outcome.fits() && !traffic_.idle()) {
      stall();
    }
    traffic_.audit();
    desk_.close();
    std::vector<ServerTotals> totals;
    for (std::size_t i = 0; i < fleet_.size(); ++i) {
      totals.push_back(finish(i));
    }
    if (fleet_.size() == 0) {
      add_startups(setup_, record_);
    }
    record_.cluster = cluster_json(setup_, totals, traffic_.totals());
    record_.outcome_json = outcome_json(record_.outcome);
    digest_.add(name_of(record_.outcome.kind));
    record_.digest = digest_.hex();
  }

  ServerTotals finish(std::size_t number) {
    Server& server = fleet_[number];
    const LoopTotals& loop = server.loop().totals();
    RunTotals& totals = record_.totals;
    totals.steps += loop.steps;
    totals.preemptions += server.engine().preemptions();
    totals.prefix_hit_tokens += server.engine().prefix_hit_tokens();
    // The pool of the decode server that was fullest stands for all.
    if (server.role() == Role::kDecode && loop.kv_peak >= totals.kv_peak) {
      totals.kv_pool = server.loop().pool_bytes();
      totals.kv_peak = loop.kv_peak;
      totals.kv_peak_at = loop.kv_peak_at;
    }
    const Network& network = traffic_.network();
    const Fabric::Ports& ports = traffic_.fabric().ports(number);
    ServerTotals out{server.role() == Role::kPrefill ? "prefill" : "decode",
                     fleet_.first_rank(number),
                     server.alive,
                     loop.steps,
                     loop.kv_peak,
                     server.loop().pool_bytes(),
                     network.moved(ports.out),
                     network.moved(ports.in),
                     std::max(network.most_flows(ports.out), network.most_flows(ports.in))};
    std::vector<RankRecord> ranks = server.loop().finish();
    digest_.add_word(server.digest().value());
    for (RankRecord& rank : ranks) {
      rank.rank += static_cast<int>(out.first_rank);
      rank.role = out.role;
      record_.ranks.push_back(std::move(rank));
    }
    return out;
  }

  ClusterSetup setup_;
  const ReplayOptions& options_;
  RunRecord& record_;
  Digest digest_;
  RequestDesk desk_;
  Calendar calendar_;
  Traffic traffic_;
  Fleet& fleet_ = traffic_.fleet();
};

}  // namespace

void replay_cluster(ClusterSetup setup, workloads::RequestStream& stream, RequestSink& sink,
                    const ReplayOptions& options, RunRecord& record) {
  Cluster(std::move(setup), stream, sink, options, record).run();
}

}  // namespace oomcast::cluster
