#include "sim/cluster/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "sim/cluster/cluster_json.hpp"
#include "sim/cluster/journey.hpp"
#include "sim/cluster/pairing.hpp"
#include "sim/core/error.hpp"
#include "sim/run/engine_loop.hpp"
#include "sim/run/request_desk.hpp"

namespace oomcast::cluster {
namespace {

using Role = KvHandoff::Role;

// What happens at an instant apart from steps, flows and arrivals.
struct Event {
  enum class Kind : std::uint8_t {
    kAgreed,      // `server` hears that the other side knows of the request, or has room
    kSetUp,       // the transfer of `request` may begin
    kFault,       // `number` of the setup's
    kSpeedAgain,  // `server` is slow no more
    kLeaseOver,   // the prefill server `server` keeps the KV of `request` no longer
  };
  FineSpan at;
  std::uint64_t sequence = 0;  // of equals the one that was written first
  Kind kind = Kind::kAgreed;
  std::size_t server = 0;
  RequestId request = 0;
  std::size_t number = 0;

  bool operator>(const Event& other) const {
    return std::tie(at, sequence) > std::tie(other.at, other.sequence);
  }
};

class Cluster {
 public:
  Cluster(ClusterSetup setup, workloads::RequestStream& stream, RequestSink& sink,
          const ReplayOptions& options, RunRecord& record)
      : setup_(std::move(setup)),
        options_(options),
        record_(record),
        desk_(stream, sink, options, record.totals, digest_),
        prefill_router_(setup_.route),
        decode_router_(setup_.route),
        fabric_(setup_.fabric, placed(), network_) {
    add_servers(setup_.prefill, Role::kPrefill);
    add_servers(setup_.decode, Role::kDecode);
    for (std::size_t i = 0; i < setup_.faults.size(); ++i) {
      write({since_start(setup_.faults[i].at), 0, Event::Kind::kFault, 0, 0, i});
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
  // A server and what it says to the cluster.
  class Server final : public RoundListener {
   public:
    Server(Cluster& cluster, std::size_t number, const Pool& pool, Role role)
        : cluster_(cluster),
          number_(number),
          role_(role),
          engine_(make_serving_engine(pool.plan)),
          loop_(*engine_, *pool.step_times, engine_->open_books(Detail::kClasses, true), *this,
                digest_) {
      OOMCAST_CHECK(engine_->take_role(role), "server {} has another role", number);
    }

    void admitted(const Admission& admission, SimTime at) override {
      if (role_ == Role::kPrefill) {
        cluster_.admitted(admission, at);
      }
    }
    void preempted(RequestId id) override { cluster_.preempted(id); }
    void first_token(RequestId id, SimTime at) override {
      if (role_ == Role::kDecode) {
        cluster_.first_token(id, at);
      }
    }
    void ended(const EndedRequest& request, SimTime at) override {
      cluster_.ended(number_, request, at);
    }

    [[nodiscard]] Role role() const { return role_; }
    [[nodiscard]] ServingEngine& engine() { return *engine_; }
    [[nodiscard]] EngineLoop& loop() { return loop_; }
    [[nodiscard]] KvHandoff& handoff() { return *engine_->handoff(); }

    // Of its steps: other servers' may lie between them in time, not in the order of the run.
    [[nodiscard]] const Digest& digest() const { return digest_; }

    void wake(FineSpan at) {
      loop_.wake(at);
      awake = alive;
    }

    bool alive = true;
    bool awake = false;
    std::int64_t outstanding = 0;  // see ServerLoad

   private:
    Cluster& cluster_;
    std::size_t number_;
    Role role_;
    Digest digest_;
    std::unique_ptr<ServingEngine> engine_;
    EngineLoop loop_;
  };

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
      next.offer(std::max(*at, now_), Turn::kArrival);
    }
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      Server& server = *servers_[i];
      if (server.awake) {
        next.offer(server.loop().next_at(),
                   server.loop().pipeline_full() ? Turn::kResults : Turn::kSchedule, i);
      }
    }
    return next;
  }

  // When network or calendar bring something.
  [[nodiscard]] std::optional<FineSpan> outside() const {
    std::optional<FineSpan> at = network_.next_end();
    if (!calendar_.empty() && (!at || calendar_.top().at < *at)) {
      at = calendar_.top().at;
    }
    return at;
  }

  // False when nothing is left to happen.
  bool advance() {
    const Next turn = next();
    now_ = std::max(now_, turn.at);
    switch (turn.turn) {
      case Turn::kNothing:
        return false;
      case Turn::kResults:
        servers_[turn.server]->loop().take_results();
        hear(turn.server);
        break;
      case Turn::kEvents:
        pass_flows();
        pass_events();
        break;
      case Turn::kArrival:
        arrive(desk_.take());
        break;
      case Turn::kSchedule:
        schedule(turn.server);
        break;
    }
    return true;
  }

  void schedule(std::size_t number) {
    Server& server = *servers_[number];
    EngineLoop& loop = server.loop();
    if (!options_.step_by_step && loop.jump(horizon(number))) {
      return check_failure(number);
    }
    if (!loop.schedule_round() && !loop.failure()) {
      loop.sleep();
      server.awake = false;
    }
    check_failure(number);
    hear(number);
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
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      Server& server = *servers_[i];
      if (i != number && server.awake &&
          (server.role() == Role::kPrefill || desk_.is_closed_loop() || !setup_.faults.empty())) {
        bound(server.loop().next_at());
      }
    }
    return until;
  }

  void check_failure(std::size_t number) {
    if (const std::optional<Outcome>& failure = servers_[number]->loop().failure()) {
      record_.outcome = *failure;
      record_.outcome.rank = static_cast<int>(first_rank(number)) + failure->rank.value_or(0);
    }
  }

  void write(Event event) {
    event.sequence = next_sequence_++;
    calendar_.push(event);
  }

  // --- servers

  [[nodiscard]] std::vector<Placed> placed() const {
    std::vector<Placed> servers;
    for (const Pool* pool : {&setup_.prefill, &setup_.decode}) {
      const EngineDeployment& deployment = pool->plan.deployment();
      servers.insert(
          servers.end(), static_cast<std::size_t>(pool->servers),
          {cards(deployment), pool == &setup_.decode ? 1 : 0, deployment.gpu.nvlink_bandwidth / 2});
    }
    return servers;
  }

  void add_servers(const Pool& pool, Role role) {
    if (!setup_.prefill.plan.outcome().fits() || !setup_.decode.plan.outcome().fits()) {
      return;
    }
    for (std::int64_t i = 0; i < pool.servers; ++i) {
      servers_.push_back(std::make_unique<Server>(*this, servers_.size(), pool, role));
    }
  }

  [[nodiscard]] std::size_t prefills() const {
    return static_cast<std::size_t>(setup_.prefill.servers);
  }
  [[nodiscard]] std::size_t number_of(Role role, std::size_t in_pool) const {
    return role == Role::kPrefill ? in_pool : prefills() + in_pool;
  }
  [[nodiscard]] std::int64_t first_rank(std::size_t number) const {
    const std::int64_t of_prefill = cards(setup_.prefill.plan.deployment());
    const auto before = static_cast<std::int64_t>(std::min(number, prefills()));
    const auto behind = static_cast<std::int64_t>(number) - before;
    return before * of_prefill + behind * cards(setup_.decode.plan.deployment());
  }

  std::optional<std::size_t> route(Role role) {
    const std::size_t first = number_of(role, 0);
    const std::size_t end = role == Role::kPrefill ? prefills() : servers_.size();
    std::vector<ServerLoad> pool;
    for (std::size_t i = first; i < end; ++i) {
      pool.push_back({servers_[i]->alive, servers_[i]->outstanding});
    }
    Router& router = role == Role::kPrefill ? prefill_router_ : decode_router_;
    const auto picked = router.pick(pool);
    return picked ? std::optional(first + *picked) : std::nullopt;
  }

  // --- requests

  void arrive(const workloads::TraceRequest& request) {
    Journey journey;
    journey.request = request;
    send(std::move(journey));
  }

  // Where the decode side pulls, the router sends a request there once its prompt is done; else to
  // both sides at once.
  void send(Journey journey) {
    const std::int64_t index = journey.request.index;
    const auto prefill = route(Role::kPrefill);
    if (!prefill) {
      return desk_.finish(index, RequestOutcome::kFailed, Tokens{0}, instant(now_));
    }
    journey.prefill = *prefill;
    const RequestId id = next_id_++;
    Server& sender = *servers_[*prefill];
    sender.wake(now_);
    if (const auto refusal = sender.engine().add(journey.request, id)) {
      return desk_.refuse(index, *refusal, instant(now_));
    }
    sender.outstanding += journey.request.input.count();
    journeys_.emplace(id, std::move(journey));
    if (!sender.handoff().prefill_first()) {
      send_on(id);
    }
  }

  // To a decode server.
  void send_on(RequestId id) {
    Journey& journey = journeys_.at(id);
    const auto decode = route(Role::kDecode);
    if (!decode) {
      return lose(id, RequestOutcome::kFailed);
    }
    Server& receiver = *servers_[*decode];
    receiver.wake(now_);
    if (const auto refusal = receiver.engine().add(journey.request, id)) {
      return lose(id, *refusal);
    }
    journey.decode = *decode;
    ++receiver.outstanding;
    write({now_ + FineSpan{fabric_.latency()}, 0, Event::Kind::kAgreed, *decode, id, 0});
  }

  Journey* find(RequestId id) {
    const auto place = journeys_.find(id);
    return place == journeys_.end() ? nullptr : &place->second;
  }
  RequestRow* row_of(RequestId id) {
    const Journey* journey = find(id);
    return journey == nullptr ? nullptr : &desk_.row(journey->request.index);
  }

  void admitted(const Admission& admission, SimTime at) {
    RequestRow* row = row_of(admission.id);
    if (row != nullptr && row->first_scheduled == RequestRow::kNever) {
      row->first_scheduled = at;
      row->cached = admission.hit;
    }
  }
  void preempted(RequestId id) {
    if (RequestRow* row = row_of(id)) {
      ++row->preemptions;
    }
  }
  void first_token(RequestId id, SimTime at) {
    RequestRow* row = row_of(id);
    if (row != nullptr && row->first_token == RequestRow::kNever) {
      row->first_token = at;
    }
  }

  // A prefill server is through with its part when the prompt is done (and pulled), or all KV is
  // over, not before.
  void ended(std::size_t number, const EndedRequest& request, SimTime at) {
    const Journey* journey = find(request.id);
    if (journey == nullptr) {
      return;
    }
    if (number == journey->prefill) {
      if (!journey->handed_over && request.outcome != RequestOutcome::kFinished) {
        lose(request.id, request.outcome);
      }
      return;
    }
    if (request.outcome != RequestOutcome::kFinished) {
      return lose(request.id, request.outcome);
    }
    const RequestRow& row = desk_.row(journey->request.index);
    const Tokens most = setup_.decode.plan.deployment().max_model_len - row.input;
    desk_.finish(row.index, request.outcome, request.output.value_or(std::min(row.output, most)),
                 at);
    leave(request.id);
  }

  // Takes it off the books of servers and network.
  Journey leave(RequestId id) {
    const auto place = journeys_.find(id);
    Journey journey = std::move(place->second);
    journeys_.erase(place);
    stop_flow(journey);
    custody_.release(journey.shares);
    if (!journey.prompt_done) {
      servers_[journey.prefill]->outstanding -= journey.request.input.count();
    }
    if (journey.decode) {
      --servers_[*journey.decode]->outstanding;
    }
    return journey;
  }

  void stop_flow(Journey& journey) {
    if (journey.flow) {
      network_.cancel(*journey.flow, now_);
      flows_.erase(*journey.flow);
      journey.flow.reset();
    }
  }

  // Its servers are lost, or one of them dropped it. The router sends it anew while its client has
  // not seen a token.
  void lose(RequestId id, RequestOutcome outcome) {
    Journey journey = leave(id);
    if (!journey.handed_over) {
      transfers_.lost += journey.has_room ? 1 : 0;
      give_up_prefill(id, journey);
    }
    if (journey.decode && servers_[*journey.decode]->alive) {
      servers_[*journey.decode]->handoff().give_up(id);
      servers_[*journey.decode]->wake(now_);
    }
    const std::int64_t index = journey.request.index;
    if (outcome == RequestOutcome::kFailed && journey.attempt < setup_.retries &&
        desk_.row(index).first_token == RequestRow::kNever) {
      ++transfers_.retried;
      Journey again;
      again.request = std::move(journey.request);
      again.attempt = journey.attempt + 1;
      return send(std::move(again));
    }
    if (outcome == RequestOutcome::kFailed || outcome == RequestOutcome::kAborted) {
      return desk_.finish(index, outcome, Tokens{0}, instant(now_));
    }
    desk_.refuse(index, outcome, instant(now_));
  }

  // What is kept for a decode server that is gone stays until its lease is over.
  void give_up_prefill(RequestId id, const Journey& journey) {
    Server& server = *servers_[journey.prefill];
    if (!server.alive) {
      return;
    }
    if (server.handoff().prefill_first() && journey.prompt_done) {
      write({now_ + FineSpan{server.handoff().lease()}, 0, Event::Kind::kLeaseOver, journey.prefill,
             id, 0});
      return;
    }
    server.handoff().give_up(id);
    server.wake(now_);
  }

  // --- transfers

  void hear(std::size_t number) {
    Server& server = *servers_[number];
    KvHandoff& handoff = server.handoff();
    for (const KvHandoff::Want& want : handoff.wants()) {
      if (Journey* journey = find(want.id)) {
        take_want(want, *journey);
      }
    }
    // Pieces can lead to other servers and news of theirs, not of this one.
    for (const KvHandoff::Piece& piece : handoff.pieces()) {
      if (find(piece.id) != nullptr) {
        take_piece(piece);
      }
    }
    handoff.clear_news();
  }

  void take_want(const KvHandoff::Want& want, Journey& journey) {
    journey.has_room = true;
    ++transfers_.begun;
    transfers_.room.add((instant(now_) - journey.request.arrival).count());
    if (!servers_[journey.prefill]->handoff().prefill_first()) {
      write({now_ + FineSpan{fabric_.latency()}, 0, Event::Kind::kAgreed, journey.prefill, want.id,
             0});
      return;
    }
    custody_.drop(journey.shares, Hand::kPrefill, journey.ready - want.tokens);
    journey.ready = want.tokens;
    if (want.tokens > Tokens{0}) {
      write({now_ + FineSpan{fabric_.setup()}, 0, Event::Kind::kSetUp, 0, want.id, 0});
    } else {
      hand_over(want.id, journey);
    }
  }

  void take_piece(const KvHandoff::Piece& piece) {
    Journey& journey = journeys_.at(piece.id);
    const bool first = journey.ready == Tokens{0};
    custody_.compute(journey.shares, piece.upto - journey.ready);
    journey.ready = piece.upto;
    if (piece.last) {
      journey.prompt_done = true;
      journey.prompt_done_at = instant(now_);
      servers_[journey.prefill]->outstanding -= journey.request.input.count();
      transfers_.prefill.add((journey.prompt_done_at - journey.request.arrival).count());
    }
    if (servers_[journey.prefill]->handoff().prefill_first()) {
      return send_on(piece.id);
    }
    if (first && piece.upto > Tokens{0}) {
      write({now_ + FineSpan{fabric_.setup()}, 0, Event::Kind::kSetUp, 0, piece.id, 0});
    }
    pump(piece.id, journey);
  }

  // Puts what is ready on the wire.
  void pump(RequestId id, Journey& journey) {
    const Tokens tokens = journey.ready - journey.sent;
    if (!journey.open || tokens == Tokens{0}) {
      return;
    }
    custody_.pass(journey.shares, Hand::kPrefill, Hand::kFlight, tokens);
    journey.sent = journey.ready;
    const Bytes bytes = setup_.wire_token * tokens.count();
    if (journey.flow) {
      network_.extend(*journey.flow, bytes, now_);
      return;
    }
    journey.flow = network_.start(fabric_.path(journey.prefill, *journey.decode), bytes, now_);
    flows_.emplace(*journey.flow, id);
    transfers_.most_at_once =
        std::max(transfers_.most_at_once, static_cast<std::int64_t>(flows_.size()));
  }

  void pass_flows() {
    for (const FlowId flow : network_.take_ended(now_)) {
      const RequestId id = flows_.at(flow);
      flows_.erase(flow);
      Journey& journey = journeys_.at(id);
      journey.flow.reset();
      custody_.pass(journey.shares, Hand::kFlight, Hand::kDecode,
                    journey.shares[static_cast<std::size_t>(Hand::kFlight)]);
      if (journey.prompt_done && journey.sent == journey.ready) {
        hand_over(id, journey);
      }
    }
  }

  void hand_over(RequestId id, Journey& journey) {
    journey.handed_over = true;
    ++transfers_.done;
    transfers_.bytes += setup_.wire_token * journey.sent.count();
    transfers_.transfer.add((instant(now_) - journey.prompt_done_at).count());
    for (const std::size_t number : {journey.prefill, *journey.decode}) {
      servers_[number]->handoff().transferred(id);
      servers_[number]->wake(now_);
    }
  }

  // --- calendar

  void pass_events() {
    while (!calendar_.empty() && calendar_.top().at <= now_) {
      const Event event = calendar_.top();
      calendar_.pop();
      pass(event);
    }
  }

  void pass(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kAgreed:
        if (servers_[event.server]->alive && find(event.request) != nullptr) {
          servers_[event.server]->handoff().agreed(event.request);
          servers_[event.server]->wake(now_);
        }
        break;
      case Event::Kind::kSetUp:
        if (Journey* journey = find(event.request)) {
          journey->open = true;
          pump(event.request, *journey);
        }
        break;
      case Event::Kind::kFault:
        inject(setup_.faults[event.number]);
        break;
      case Event::Kind::kSpeedAgain:
        fabric_.slow(event.server, 1, now_);
        break;
      case Event::Kind::kLeaseOver:
        if (servers_[event.server]->alive) {
          servers_[event.server]->handoff().transferred(event.request);
          servers_[event.server]->wake(now_);
        }
        break;
    }
  }

  void inject(const Fault& fault) {
    const std::size_t number = number_of(fault.role, fault.server);
    switch (fault.kind) {
      case Fault::Kind::kKill:
        servers_[number]->alive = false;
        servers_[number]->awake = false;
        for (const RequestId id : those([&](const Journey& journey) {
               return journey.decode == number ||
                      (journey.prefill == number && !journey.handed_over);
             })) {
          if (journeys_.at(id).decode == number) {
            lose(id, RequestOutcome::kFailed);
          } else {
            fail_transfer(id);
          }
        }
        break;
      case Fault::Kind::kDrop:
        for (const RequestId id : those([&](const Journey& journey) {
               return journey.flow && (journey.decode == number || journey.prefill == number);
             })) {
          fail_transfer(id);
        }
        break;
      case Fault::Kind::kSlow:
        fabric_.slow(number, fault.share, now_);
        if (fault.until) {
          write({since_start(*fault.until), 0, Event::Kind::kSpeedAgain, number, 0, 0});
        }
        break;
    }
  }

  // In the order in which they were sent.
  template <typename Meant>
  [[nodiscard]] std::vector<RequestId> those(const Meant& meant) const {
    std::vector<RequestId> ids;
    for (const auto& [id, journey] : journeys_) {
      if (meant(journey)) {
        ids.push_back(id);
      }
    }
    return ids;
  }

  // The KV never arrives. A decode server that waits for it may compute it itself, or end the
  // request by its own policy.
  void fail_transfer(RequestId id) {
    Journey& journey = journeys_.at(id);
    Server* receiver = journey.decode ? servers_[*journey.decode].get() : nullptr;
    if (receiver == nullptr || !receiver->handoff().lost(id)) {
      return lose(id, RequestOutcome::kFailed);
    }
    receiver->wake(now_);
    stop_flow(journey);
    custody_.release(journey.shares);
    give_up_prefill(id, journey);
    journey.handed_over = true;
    ++transfers_.lost;
  }

  // --- the end

  // Somebody waits and nothing will ever happen: the engines hang.
  void stall() {
    const auto stuck = std::find_if(servers_.begin(), servers_.end(), [](const auto& server) {
      return server->alive && server->role() == Role::kDecode && !server->engine().idle();
    });
    if (stuck == servers_.end()) {
      record_.outcome.kind = OutcomeKind::kKvTooSmall;
      record_.outcome.message = "requests wait for a prefill server that does not go on";
    } else {
      record_.outcome = (*stuck)->engine().stall_outcome();
      record_.outcome.rank =
          static_cast<int>(first_rank(static_cast<std::size_t>(stuck - servers_.begin())));
    }
    record_.outcome.phase = "runtime";
  }

  void finish() {
    if (record_.outcome.fits() && !journeys_.empty()) {
      stall();
    }
    custody_.audit();
    OOMCAST_CHECK(flows_.size() == network_.flows(), "{} flows of {} requests", network_.flows(),
                  flows_.size());
    desk_.close();
    std::vector<ServerTotals> totals;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      totals.push_back(finish(i));
    }
    if (servers_.empty()) {
      add_startups(setup_, record_);
    }
    record_.cluster = cluster_json(setup_, totals, transfers_);
    record_.outcome_json = outcome_json(record_.outcome);
    digest_.add(name_of(record_.outcome.kind));
    record_.digest = digest_.hex();
  }

  ServerTotals finish(std::size_t number) {
    Server& server = *servers_[number];
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
    const Fabric::Ports& ports = fabric_.ports(number);
    ServerTotals out{server.role() == Role::kPrefill ? "prefill" : "decode",
                     first_rank(number),
                     server.alive,
                     loop.steps,
                     loop.kv_peak,
                     server.loop().pool_bytes(),
                     network_.moved(ports.out),
                     network_.moved(ports.in),
                     std::max(network_.most_flows(ports.out), network_.most_flows(ports.in))};
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
  Router prefill_router_;
  Router decode_router_;
  Network network_;
  Fabric fabric_;
  std::vector<std::unique_ptr<Server>> servers_;
  FineSpan now_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> calendar_;
  std::uint64_t next_sequence_ = 0;
  RequestId next_id_ = 0;
  std::map<RequestId, Journey> journeys_;
  std::map<FlowId, RequestId> flows_;
  KvCustody custody_;
  TransferTotals transfers_;
};

}  // namespace

void replay_cluster(ClusterSetup setup, workloads::RequestStream& stream, RequestSink& sink,
                    const ReplayOptions& options, RunRecord& record) {
  Cluster(std::move(setup), stream, sink, options, record).run();
}

}  // namespace oomcast::cluster
