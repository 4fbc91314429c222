#include "sim/engines/sglang/startup_rules.hpp"

#include <algorithm>

#include "models/data.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast::sglang {
namespace {

constexpr const char* kFile = "engines/sglang/presets.json";
constexpr std::int64_t kMost = std::int64_t{1} << 40;

// Rules that are tables of their own.
class Rows : public VersionRows {
 public:
  using VersionRows::VersionRows;

  [[nodiscard]] std::vector<ExpertPadding> expert_padding() const {
    std::vector<ExpertPadding> out;
    for (const Json& row : rows_of("tuned_expert_padding")) {
      const JsonView view(row, source(), "tuned_expert_padding.rows", problems());
      ExpertPadding one;
      one.experts = view.integer("experts", 1, kMost).value_or(1);
      one.width = view.integer("width", 1, kMost).value_or(1);
      one.card = view.text("card").value_or("");
      one.fp8 = view.boolean("fp8").value_or(false);
      const Json* blocks = view.find("blocks");
      for (const Json& pair : blocks != nullptr && blocks->is_array() ? *blocks : Json::array()) {
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
            !pair[1].is_number_integer()) {
          complain("tuned_expert_padding.rows.blocks", "pairs of tokens and rows");
          break;
        }
        one.blocks.emplace_back(pair[0].get<std::int64_t>(), pair[1].get<std::int64_t>());
      }
      out.push_back(std::move(one));
    }
    return out;
  }

  [[nodiscard]] std::vector<PrefillMost> prefill_most() const {
    std::vector<PrefillMost> out;
    for (const Json& row : list("prefill_most")) {
      const JsonView view(row, source(), "rules.prefill_most", problems());
      out.push_back({view.texts("architectures").value_or(std::vector<std::string>{}),
                     view.integer("tokens", 1, kMost).value_or(1)});
    }
    return out;
  }

  [[nodiscard]] std::vector<FusedSharedExperts> fused_shared_experts() const {
    std::vector<FusedSharedExperts> out;
    for (const Json& row : list("fused_shared_experts")) {
      const JsonView view(row, source(), "rules.fused_shared_experts", problems());
      out.push_back({view.texts("architectures").value_or(std::vector<std::string>{}),
                     view.integer("experts", 1, kMost)});
    }
    return out;
  }

  [[nodiscard]] std::vector<CommunicatorRest> communicator_rests() const {
    std::vector<CommunicatorRest> out;
    for (const Json& row : rows_of("communicator_rest")) {
      const JsonView view(row, source(), "communicator_rest.rows", problems());
      out.push_back({view.text("link").value_or(""), view.integer("compute", 0, kMost).value_or(0),
                     kMiB * view.integer("mib", 0, kMost).value_or(0),
                     kMiB * view.integer("peer_mib", 0, kMost).value_or(0)});
    }
    return out;
  }

  [[nodiscard]] std::vector<MemoryClass> memory_classes() const {
    std::vector<MemoryClass> out;
    for (const Json& row : list("memory_classes")) {
      const JsonView view(row, source(), "rules.memory_classes", problems());
      MemoryClass one;
      one.below_mib = view.integer("below_mib", 1, kMost).value_or(one.below_mib);
      one.chunk = view.integer("chunk", 1, kMost).value_or(one.chunk);
      one.decode = view.integer("decode", 1, kMost).value_or(one.decode);
      one.decode_tp4 = view.integer("decode_tp4", 1, kMost).value_or(one.decode_tp4);
      one.decode_groups = view.integer("decode_groups", 1, kMost);
      one.reserve_gib = view.number("reserve_gib").value_or(0);
      one.reserve_rank_gib = view.number("reserve_rank_gib").value_or(0);
      out.push_back(one);
    }
    if (out.empty()) {
      complain("rules.memory_classes", "at least one class");
      out.emplace_back();
    }
    return out;
  }

  [[nodiscard]] std::vector<LargeCard> large_cards() const {
    std::vector<LargeCard> out;
    for (const Json& row : list("large_cards")) {
      const JsonView view(row, source(), "rules.large_cards", problems());
      LargeCard one;
      one.above_mib = view.integer("above_mib", 1, kMost).value_or(kMost);
      one.fraction = view.number("fraction").value_or(0);
      one.reserve_mib = view.integer("reserve_mib", 0, kMost).value_or(0);
      one.speculative_reserve_mib =
          view.integer("speculative_reserve_mib", 0, kMost).value_or(one.reserve_mib);
      out.push_back(one);
    }
    return out;
  }

  [[nodiscard]] std::vector<AttentionDefault> attention_defaults() const {
    std::vector<AttentionDefault> out;
    for (const Json& row : list("attention_defaults")) {
      const JsonView view(row, source(), "rules.attention_defaults", problems());
      out.push_back({view.texts("architectures").value_or(std::vector<std::string>{}),
                     view.integer("compute", 0, kMost),
                     view.integer("least_mib", 0, kMost).value_or(0), view.text("backend"),
                     view.text("decode"), view.integer("page", 1, kMost)});
    }
    return out;
  }

  [[nodiscard]] std::vector<std::pair<std::int64_t, double>> fraction_by_ranks() const {
    std::vector<std::pair<std::int64_t, double>> out;
    for (const Json& row : list("fraction_by_ranks")) {
      if (!row.is_array() || row.size() != 2 || !row[0].is_number_integer() ||
          !row[1].is_number()) {
        complain("rules.fraction_by_ranks", "pairs of ranks and fraction");
        break;
      }
      out.emplace_back(row[0].get<std::int64_t>(), row[1].get<double>());
    }
    return out;
  }

 private:
  [[nodiscard]] Json rows_of(const char* name) const {
    const auto section = file().object(name);
    const Json* rows = section ? section->find("rows") : nullptr;
    return rows != nullptr && rows->is_array() ? *rows : Json::array();
  }
};

void read_measured(const Rows& read, StartupRules& rules) {
  auto& notes = rules.provenance;
  rules.first_capture_modules = kMiB * read.measured("first_capture_modules_mib", notes);
  rules.load_modules = kMiB * read.measured("load_modules_mib", notes);
}

StartupRules read_rules(const Version& version) {
  const Json& file = models::embedded_json(kFile);
  Problems problems;
  const Rows read(file, kFile, version, problems);
  StartupRules rules;
  rules.fraction = read.choice<FractionRule>("fraction", {{"by_ranks", FractionRule::kByRanks},
                                                          {"by_class", FractionRule::kByClass},
                                                          {"by_use", FractionRule::kByUse}});
  rules.fraction_by_ranks = read.fraction_by_ranks();
  rules.large_cards = read.large_cards();
  rules.fraction_unknown_card = read.number("fraction_unknown_card");
  rules.classes = read.memory_classes();
  rules.capture_list = read.choice<CaptureList>(
      "capture_list",
      {{"steps_of_8", CaptureList::kStepsOf8}, {"widening", CaptureList::kWidening}});
  rules.decode_cut_to_requests = read.boolean("decode_cut_to_requests");
  rules.speculative_reserve = kMiB * read.integer("speculative_reserve_mib");
  rules.standalone_reserve = kMiB * read.integer("standalone_reserve_mib");
  rules.prefill_graphs_first = read.boolean("prefill_graphs_first");
  rules.prefill_graphs =
      read.choice<PrefillGraphs>("prefill_graphs", {{"on_request", PrefillGraphs::kOnRequest},
                                                    {"piecewise", PrefillGraphs::kPiecewise},
                                                    {"breakable", PrefillGraphs::kBreakable}});
  rules.prefill_graphs_mla = read.boolean("prefill_graphs_mla");
  rules.prefill_graphs_exchange = read.boolean("prefill_graphs_exchange");
  rules.prefill_graphs_multimodal = read.texts("prefill_graphs_multimodal");
  rules.prefill_graphs_refused = read.texts("prefill_graphs_refused");
  rules.prefill_most = read.prefill_most();
  rules.prefill_graphs_unfit = read.texts("prefill_graphs_unfit");
  rules.prefill_reserve = read.choice<PrefillReserve>(
      "prefill_graph_reserve", {{"none", PrefillReserve::kNone},
                                {"tokens_after_floor", PrefillReserve::kTokensAfterFloor},
                                {"per_size", PrefillReserve::kPerSize}});
  rules.prefill_reserve_divisor =
      std::max<std::int64_t>(1, read.integer("prefill_reserve_divisor"));
  rules.mla_graph_reserve = kMiB * read.integer("mla_graph_reserve_mib");
  rules.prefill_max_mla = read.integer("prefill_max_mla");
  rules.disaggregated_activation = read.boolean("disaggregated_activation");
  rules.deepep_reserve = kMiB * read.integer("deepep_reserve_mib");
  rules.attention_defaults = read.attention_defaults();
  rules.multimodal_when_asked = read.texts("multimodal_when_asked");
  rules.encoder_data_parallel = read.texts("encoder_data_parallel");
  rules.multimodal_share = read.number("multimodal_share");
  rules.multimodal_factor = read.boolean("multimodal_factor");
  rules.multimodal_reservation = read.boolean("multimodal_reservation");
  rules.draft_before_pool = read.boolean("draft_before_pool");
  rules.drafts_in_cell = read.texts("drafts_in_cell");
  rules.drafts_keep_ends = read.texts("drafts_keep_ends");
  rules.unequal_values_in_cell = read.boolean("unequal_values_in_cell");
  rules.sparse_fp8_row = read.boolean("sparse_fp8_row");
  rules.window_split_by_bytes = read.boolean("window_split_by_bytes");
  rules.compressed = read.choice<CompressedBudget>("compressed_budget",
                                                   {{"by_tokens", CompressedBudget::kByTokens},
                                                    {"by_requests", CompressedBudget::kByRequests},
                                                    {"by_pages", CompressedBudget::kByPages}});
  rules.draft_states =
      read.choice<DraftStates>("draft_states", {{"per_slot", DraftStates::kPerSlot},
                                                {"per_request", DraftStates::kPerRequest},
                                                {"shared", DraftStates::kShared}});
  rules.window_pool_capped = read.boolean("window_pool_capped");
  rules.state_padding_slot = read.boolean("state_padding_slot");
  rules.request_padding_row =
      read.choice<PaddingRow>("request_padding_row", {{"none", PaddingRow::kNone},
                                                      {"usable", PaddingRow::kUsable},
                                                      {"unused", PaddingRow::kUnused}});
  rules.pool_caps_given_requests = read.boolean("pool_caps_given_requests");
  rules.speculative_requests = read.integer("speculative_requests");
  rules.logits_buffer = read.boolean("logits_buffer");
  rules.draft_page_table = read.boolean("draft_page_table");
  rules.copied_page_tables = read.boolean("copied_page_tables");
  rules.encoder_page_table = read.boolean("encoder_page_table");
  rules.fa3_splits_unbounded = read.boolean("fa3_splits_unbounded");
  rules.flashinfer_large = read.texts("flashinfer_large");
  rules.unread_scales = read.boolean("unread_scales");
  rules.shared_expert_copies = read.boolean("shared_expert_copies");
  rules.input_registry = read.boolean("input_registry");
  rules.shared_kv_storage = read.boolean("shared_kv_storage");
  rules.fp4_canonical_layout = read.boolean("fp4_canonical_layout");
  rules.fp4_pads_scales = read.boolean("fp4_pads_scales");
  rules.checkpoint_kv_dtype = read.boolean("checkpoint_kv_dtype");
  rules.repacked_scales =
      read.choice<RepackedScales>("repacked_scales", {{"none", RepackedScales::kNone},
                                                      {"deepseek", RepackedScales::kDeepseek},
                                                      {"linear", RepackedScales::kLinear}});
  rules.fp32_rope_tables = read.boolean("fp32_rope_tables");
  rules.rope_tables_unscaled = read.texts("rope_tables_unscaled");
  rules.rope_tables_missing = read.texts("rope_tables_missing");
  rules.rope_tables_extended = read.boolean("rope_tables_extended");
  rules.expert_locations = read.texts("expert_locations");
  rules.tower_rope_tables = read.texts("tower_rope_tables");
  rules.towers_when_asked = read.texts("towers_when_asked");
  rules.towers_last = read.texts("towers_last");
  rules.tower_mlp_whole = read.texts("tower_mlp_whole");
  rules.absorbed_on_reading = read.texts("absorbed_on_reading");
  rules.fp32_routers = read.texts("fp32_routers");
  rules.fused_indexer_keys = read.boolean("fused_indexer_keys");
  rules.indexer_rope = read.boolean("indexer_rope");
  rules.quoted_self = read.boolean("quoted_self");
  rules.weights_leave_nothing = read.boolean("weights_leave_nothing");
  rules.fa3_by_default = read.boolean("fa3_by_default");
  rules.host_pool_covers_device = read.boolean("host_pool_covers_device");
  rules.host_write_staging = read.boolean("host_write_staging");
  rules.host_pool_auto_size = read.boolean("host_pool_auto_size");
  rules.trtllm_mha_by_default = read.boolean("trtllm_mha_by_default");
  rules.trtllm_mla_by_default = read.boolean("trtllm_mla_by_default");
  rules.extra_state_buffer = read.boolean("extra_state_buffer");
  rules.torch = read.version("torch");
  rules.step_costs = read.step_costs();
  rules.untracked_architectures = read.texts("untracked_architectures");
  rules.windowed_architectures = read.texts("windowed_architectures");
  rules.expert_padding = read.expert_padding();
  rules.fused_shared_experts = read.fused_shared_experts();
  rules.native_head_norms = read.texts("native_head_norms");
  rules.copied_heads = read.texts("copied_heads");
  rules.plain_residuals = read.texts("plain_residuals");
  rules.deferred_sums = read.texts("deferred_sums");
  rules.latents_beside = read.texts("latents_beside");
  rules.held_inputs = read.texts("held_inputs");
  rules.delta_net_by_parts = read.texts("delta_net_by_parts");
  rules.delta_net_chunks = read.boolean("delta_net_chunks");
  rules.communicator_rests = read.communicator_rests();
  read_measured(read, rules);
  problems.raise_if_any();
  return rules;
}

}  // namespace

StartupRules startup_rules_for(const Version& version) { return known_rules(version, read_rules); }

}  // namespace oomcast::sglang
