#include "sim/cluster/traffic.hpp"

#include <algorithm>

namespace oomcast::cluster {

void Traffic::stop_flow(Journey& journey) {
  if (journey.flow) {
    network_.cancel(*journey.flow, now());
    flows_.erase(*journey.flow);
    journey.flow.reset();
  }
}

void Traffic::hear(std::size_t number) {
  Server& server = fleet_[number];
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

void Traffic::take_want(const KvHandoff::Want& want, Journey& journey) {
  journey.has_room = true;
  ++totals_.begun;
  totals_.room.add((instant(now()) - journey.request.arrival).count());
  if (!fleet_[journey.prefill].handoff().prefill_first()) {
    calendar_.write(
        {now() + FineSpan{fabric_.latency()}, Event::Kind::kAgreed, journey.prefill, want.id, 0});
    return;
  }
  custody_.drop(journey.shares, Hand::kPrefill, journey.ready - want.tokens);
  journey.ready = want.tokens;
  if (want.tokens > Tokens{0}) {
    calendar_.write({now() + FineSpan{fabric_.setup()}, Event::Kind::kSetUp, 0, want.id, 0});
  } else {
    hand_over(want.id, journey);
  }
}

void Traffic::take_piece(const KvHandoff::Piece& piece) {
  Journey& journey = journeys_.at(piece.id);
  const bool first = journey.ready == Tokens{0};
  custody_.compute(journey.shares, piece.upto - journey.ready);
  journey.ready = piece.upto;
  if (piece.last) {
    journey.prompt_done = true;
    journey.prompt_done_at = instant(now());
    fleet_[journey.prefill].outstanding -= journey.request.input.count();
    totals_.prefill.add((journey.prompt_done_at - journey.request.arrival).count());
  }
  if (fleet_[journey.prefill].handoff().prefill_first()) {
    return send_on(piece.id);
  }
  if (first && piece.upto > Tokens{0}) {
    calendar_.write({now() + FineSpan{fabric_.setup()}, Event::Kind::kSetUp, 0, piece.id, 0});
  }
  pump(piece.id, journey);
}

// Puts what is ready on the wire.
void Traffic::pump(RequestId id, Journey& journey) {
  const Tokens tokens = journey.ready - journey.sent;
  if (!journey.open || tokens == Tokens{0}) {
    return;
  }
  custody_.pass(journey.shares, Hand::kPrefill, Hand::kFlight, tokens);
  journey.sent = journey.ready;
  const Bytes bytes = setup_.wire_token * tokens.count();
  if (journey.flow) {
    network_.extend(*journey.flow, bytes, now());
    return;
  }
  journey.flow = network_.start(fabric_.path(journey.prefill, *journey.decode), bytes, now());
  flows_.emplace(*journey.flow, id);
  totals_.most_at_once = std::max(totals_.most_at_once, static_cast<std::int64_t>(flows_.size()));
}

void Traffic::pass_flows() {
  for (const FlowId flow : network_.take_ended(now())) {
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

void Traffic::hand_over(RequestId id, Journey& journey) {
  journey.handed_over = true;
  ++totals_.done;
  totals_.bytes += setup_.wire_token * journey.sent.count();
  totals_.transfer.add((instant(now()) - journey.prompt_done_at).count());
  for (const std::size_t number : {journey.prefill, *journey.decode}) {
    fleet_[number].handoff().transferred(id);
    fleet_[number].wake(now());
  }
}

// The KV never arrives. A decode server that waits for it may compute it itself, or end the
// request by its own policy.
void Traffic::fail_transfer(RequestId id) {
  Journey& journey = journeys_.at(id);
  Server* receiver = journey.decode ? &fleet_[*journey.decode] : nullptr;
  if (receiver == nullptr || !receiver->handoff().lost(id)) {
    return lose(id, RequestOutcome::kFailed);
  }
  receiver->wake(now());
  stop_flow(journey);
  custody_.release(journey.shares);
  give_up_prefill(id, journey);
  journey.handed_over = true;
  ++totals_.lost;
}

}  // namespace oomcast::cluster
