#include "sim/cluster/cluster_json.hpp"

#include <array>
#include <utility>

#include "sim/cluster/pairing.hpp"
#include "sim/core/units_text.hpp"
#include "sim/run/rank_books.hpp"

namespace oomcast::cluster {
namespace {

using PoolOf = std::pair<const char*, const Pool*>;

std::array<PoolOf, 2> pools(const ClusterSetup& setup) {
  return {{{"prefill", &setup.prefill}, {"decode", &setup.decode}}};
}

OrderedJson spans(const LogHistogram& nanos) {
  return {{"mean", nanos.mean() * 1e-9},
          {"p50", static_cast<double>(nanos.quantile(0.5)) * 1e-9},
          {"p99", static_cast<double>(nanos.quantile(0.99)) * 1e-9},
          {"max", static_cast<double>(nanos.largest()) * 1e-9}};
}

OrderedJson pool_json(const char* role, const Pool& pool) {
  const EngineDeployment& deployment = pool.plan.deployment();
  return {{"role", role},
          {"servers", pool.servers},
          {"ranks_per_server", cards(deployment)},
          {"gpu", deployment.gpu.name},
          {"launch", launch::to_json(deployment.launch)},
          {"kv_tokens", pool.plan.report().kv_tokens.value_or(0)},
          {"max_running_requests", pool.plan.report().max_running_requests.value_or(0)}};
}

OrderedJson server_json(const ServerTotals& server) {
  return {{"role", server.role},
          {"first_rank", server.first_rank},
          {"alive", server.alive},
          {"steps", server.steps},
          {"kv_pool_bytes", server.kv_pool.count()},
          {"kv_peak_bytes", server.kv_peak.count()},
          {"sent_bytes", server.sent.count()},
          {"received_bytes", server.received.count()},
          {"most_transfers_at_once", server.most_flows}};
}

}  // namespace

OrderedJson cluster_json(const ClusterSetup& setup, const std::vector<ServerTotals>& servers,
                         const TransferTotals& transfers) {
  OrderedJson json;
  json["pools"] = OrderedJson::array();
  for (const auto& [role, pool] : pools(setup)) {
    json["pools"].push_back(pool_json(role, *pool));
  }
  const models::LinkSpec& link = setup.fabric.link;
  json["interconnect"] = {{"name", link.name},
                          {"port_gb_s", link.bytes_per_second * link.efficiency * 1e-9},
                          {"cards_per_node", setup.fabric.cards_per_node},
                          {"nics_per_node", setup.fabric.nics_per_node},
                          {"latency_s", static_cast<double>(link.latency.count()) * 1e-9},
                          {"setup_s", static_cast<double>(link.setup.count()) * 1e-9}};
  json["faults"] = OrderedJson::array();
  for (const Fault& fault : setup.faults) {
    json["faults"].push_back(fault.text);
  }
  json["servers"] = OrderedJson::array();
  for (const ServerTotals& server : servers) {
    json["servers"].push_back(server_json(server));
  }
  json["transfers"] = {{"begun", transfers.begun},
                       {"done", transfers.done},
                       {"lost", transfers.lost},
                       {"requests_sent_anew", transfers.retried},
                       {"bytes", transfers.bytes.count()},
                       {"bytes_per_token", setup.wire_token.count()},
                       {"most_at_once", transfers.most_at_once},
                       {"wait_for_room_s", spans(transfers.room)},
                       {"prompt_done_s", spans(transfers.prefill)},
                       {"handed_over_after_s", spans(transfers.transfer)}};
  return json;
}

OrderedJson cluster_plan_json(const ClusterSetup& setup) {
  OrderedJson plan = plan_json(setup.prefill.plan);
  OrderedJson ranks = OrderedJson::array();
  std::int64_t first = 0;
  for (const auto& [role, pool] : pools(setup)) {
    const OrderedJson own = plan_json(pool->plan);
    for (std::int64_t server = 0; server < pool->servers; ++server) {
      for (const RankState* state : pool->plan.ranks()) {
        OrderedJson rank = own.at("ranks").at(static_cast<std::size_t>(state->first_rank));
        rank["rank"] = first + state->first_rank;
        rank["role"] = role;
        ranks.push_back(std::move(rank));
      }
      first += cards(pool->plan.deployment());
    }
    plan["roles"][role] = {{"world", own.at("world")},
                           {"engine_report", own.at("engine_report")},
                           {"assumptions", own.at("assumptions")},
                           {"warnings", own.at("warnings")}};
    if (!pool->plan.outcome().fits()) {
      plan["outcome"] = own.at("outcome");
    }
  }
  plan["ranks"] = std::move(ranks);
  return plan;
}

void add_startups(const ClusterSetup& setup, RunRecord& record) {
  std::int64_t first = 0;
  for (const auto& [role, pool] : pools(setup)) {
    const std::unique_ptr<ServingEngine> engine = make_serving_engine(pool->plan);
    for (RankBooks& books : engine->open_books(Detail::kClasses, true)) {
      RankRecord rank = books.finish();
      rank.rank += static_cast<int>(first);
      rank.role = role;
      record.ranks.push_back(std::move(rank));
    }
    first += pool->servers * cards(pool->plan.deployment());
  }
}

}  // namespace oomcast::cluster
