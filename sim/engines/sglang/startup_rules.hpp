// What differs between SGLang versions in startup accounting, resolved from
// models/engines/sglang/presets.json. A version that only changes values needs new rows there and
// nothing here.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/core/version.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast::sglang {

// Where the default of --mem-fraction-static comes from.
enum class FractionRule { kByRanks, kByClass, kByUse };

// Batch sizes of decode graphs.
enum class CaptureList { kStepsOf8, kWidening };

// When prefills are captured, unless flags say so: never; in pieces that torch.compile cuts; in
// pieces cut at attention, with fewer exceptions.
enum class PrefillGraphs { kOnRequest, kPiecewise, kBreakable };

// What captured prefills add to the reserve.
enum class PrefillReserve { kNone, kTokensAfterFloor, kPerSize };

// What DeepSeek V4's budget counts: everything by the token; states of coarse entries by the
// request; the window pool by requests as well, and pages with their padding.
enum class CompressedBudget { kByTokens, kByRequests, kByPages };

// Defaults by the memory that nvidia-smi prints.
struct MemoryClass {
  std::int64_t below_mib = std::numeric_limits<std::int64_t>::max();
  std::int64_t chunk = 8192;
  std::int64_t decode = 256;                  // largest captured batch
  std::int64_t decode_tp4 = 256;              // ... from four tensor-parallel ranks on
  std::optional<std::int64_t> decode_groups;  // ... with attention groups
  double reserve_gib = 0;                     // kByClass
  double reserve_rank_gib = 0;                // and for each rank
};

// kByRanks: cards with more memory than this have a fraction of their own.
struct LargeCard {
  std::int64_t above_mib = 0;
  double fraction = 0;  // 0: what the reserve leaves
  std::int64_t reserve_mib = 0;
  std::int64_t speculative_reserve_mib = 0;
};

// What an NCCL communicator takes beyond the buffers of its ring and tree.
struct CommunicatorRest {
  std::string link;
  std::int64_t compute = 0;  // major compute capability; 0: any
  Bytes base;
  Bytes peer;  // for each other rank
};

// What drafts add to recurrent states: as many states again in each slot; states of the most
// requests, held back; the same, solved for together with the slots.
enum class DraftStates { kPerSlot, kPerRequest, kShared };

// A row of the table of requests beyond those that fit it: none; one that a request may take; one
// that stays empty.
enum class PaddingRow { kNone, kUsable, kUnused };

// Whose FP8 blocks get packed scales on compute capability 10.
enum class RepackedScales { kNone, kDeepseek, kLinear };

// A tuned configuration of the expert kernel whose rows are padded.
struct ExpertPadding {
  std::int64_t experts = 0;  // with fused shared ones
  std::int64_t width = 0;
  std::string card;  // how its name starts
  bool fp8 = false;
  // Rows of a block by the batch it was tuned for, of which the nearest holds; 0: not padded.
  std::vector<std::pair<std::int64_t, std::int64_t>> blocks;
};

// Architectures whose shared experts are one more routed expert.
struct FusedSharedExperts {
  std::vector<std::string> architectures;
  std::optional<std::int64_t> experts;  // with so many routed ones only
};

// What an architecture is served with where no attention backend is given; the first that fits.
struct AttentionDefault {
  std::vector<std::string> architectures;
  std::optional<std::int64_t> compute;  // major capability; none: any
  std::int64_t least_mib = 0;           // of the card
  std::optional<std::string> backend;   // none: the usual one
  std::optional<std::string> decode;    // of decodes alone
  std::optional<std::int64_t> page;
};

// Largest captured prefill of an architecture, where none is given.
struct PrefillMost {
  std::vector<std::string> architectures;
  std::int64_t tokens = 0;
};

struct StartupRules {
  FractionRule fraction = FractionRule::kByUse;
  std::vector<std::pair<std::int64_t, double>> fraction_by_ranks;  // from so many ranks on
  std::vector<LargeCard> large_cards;                              // ascending
  double fraction_unknown_card = 0.88;
  std::vector<MemoryClass> classes;
  CaptureList capture_list = CaptureList::kWidening;
  bool decode_cut_to_requests = false;
  Bytes speculative_reserve;
  Bytes standalone_reserve;
  PrefillGraphs prefill_graphs = PrefillGraphs::kOnRequest;
  bool prefill_graphs_first = true;  // captured before those of decodes
  bool prefill_graphs_mla = true;
  bool prefill_graphs_exchange = false;  // also with experts on other ranks, and attention groups
  std::vector<std::string> prefill_graphs_multimodal;  // architectures
  std::vector<std::string> prefill_graphs_refused;
  std::vector<PrefillMost> prefill_most;
  std::vector<std::string> prefill_graphs_unfit;  // found after the reserve is computed
  PrefillReserve prefill_reserve = PrefillReserve::kPerSize;
  std::int64_t prefill_reserve_divisor = 4;  // kTokensAfterFloor
  Bytes mla_graph_reserve;                   // instead of the reserve by size; 0: none
  std::int64_t prefill_max_mla = 0;          // tokens of the largest captured prefill
  bool disaggregated_activation = false;
  Bytes deepep_reserve;
  std::vector<AttentionDefault> attention_defaults;
  std::vector<std::string> multimodal_when_asked;  // architectures: --enable-multimodal
  std::vector<std::string> encoder_data_parallel;  // architectures: --mm-enable-dp-encoder
  double multimodal_share = 1;                     // of the fraction, whoever set it
  bool multimodal_factor = false;  // by the encoder's size, where the fraction is SGLang's own
  bool multimodal_reservation = false;
  bool draft_before_pool = false;           // draft weights lower the budget
  std::vector<std::string> drafts_in_cell;  // architectures: own draft layers count in the cell
  // ... whose drafts keep an embedding and a head of their own; others drop them for the target's.
  std::vector<std::string> drafts_keep_ends;
  bool unequal_values_in_cell = false;
  bool sparse_fp8_row = false;
  bool window_split_by_bytes = false;
  CompressedBudget compressed = CompressedBudget::kByPages;
  DraftStates draft_states = DraftStates::kShared;
  bool window_pool_capped = false;  // where no prefix is kept, by the requests asked for
  bool state_padding_slot = false;  // counted in the budget; allocated in any case
  PaddingRow request_padding_row = PaddingRow::kNone;
  bool pool_caps_given_requests = false;
  std::int64_t speculative_requests = 48;
  bool logits_buffer = true;                  // one for all graphs; else each keeps its own
  bool draft_page_table = false;              // fa3's, whether there is a draft or not
  bool copied_page_tables = false;            // fa3's, one a captured batch
  bool encoder_page_table = false;            // fa3's, whether there is an encoder or not
  bool fa3_splits_unbounded = false;          // decode batches split as one sequence alone would be
  std::vector<std::string> flashinfer_large;  // architectures with more workspace
  bool unread_scales = false;                 // NVFP4 experts, Marlin: scales in another order stay
  bool shared_expert_copies = false;  // DeepSeek V3's shared expert runs as routed ones, one a rank
  bool input_registry = false;        // 48 B of inputs for each pool token
  bool shared_kv_storage = false;     // K and V of a layer are one allocation
  bool checkpoint_kv_dtype = false;   // ModelOpt's alone
  RepackedScales repacked_scales = RepackedScales::kNone;
  bool fp4_canonical_layout = false;  // of gpt-oss' experts on Hopper: that of triton_kernels 3.8
  bool fp4_pads_scales = false;       // each 128 inputs have all their scales
  bool fp32_rope_tables = true;
  // Architectures whose tables ignore the scaling of positions, or that compute angles each step.
  std::vector<std::string> rope_tables_unscaled;
  std::vector<std::string> rope_tables_missing;
  bool rope_tables_extended = false;          // to the context length and a margin, before sizing
  std::vector<std::string> expert_locations;  // architectures: maps of experts
  // Architectures by what their encoders do: rope tables that grow as the text's; made only when
  // asked for, or after the language model; MLPs that no ranks divide.
  std::vector<std::string> tower_rope_tables;
  std::vector<std::string> towers_when_asked;
  std::vector<std::string> towers_last;
  std::vector<std::string> tower_mlp_whole;
  std::vector<std::string> absorbed_on_reading;  // no absorbed projections of dummy weights
  std::vector<std::string> fp32_routers;
  bool fused_indexer_keys = false;     // where an indexer pairs elements as the attention does
  bool indexer_rope = false;           // a table of its own where it does not
  bool quoted_self = false;            // in the text of an error
  bool weights_leave_nothing = false;  // an error of its own
  bool fa3_by_default = false;
  bool host_pool_covers_device = false;  // or the start ends
  bool host_write_staging = false;       // host pools in page order by default
  bool host_pool_auto_size = false;      // the default ratio is lowered to what the host has
  bool trtllm_mha_by_default = false;    // on compute capability 10
  bool trtllm_mla_by_default = false;
  bool extra_state_buffer = false;  // recurrent states are tracked in buffers of their own
  Version torch;
  StepCosts step_costs;

  std::vector<std::string> untracked_architectures;  // never have such buffers
  std::vector<std::string> windowed_architectures;
  std::vector<ExpertPadding> expert_padding;
  std::vector<FusedSharedExperts> fused_shared_experts;
  std::vector<std::string> native_head_norms;   // architectures: heads normalised in fp32, by parts
  std::vector<std::string> copied_heads;        // architectures: q and k normalised apart
  std::vector<std::string> plain_residuals;     // architectures: sums with the residual are apart
  std::vector<std::string> deferred_sums;       // architectures: the next norm sums over ranks
  std::vector<std::string> latents_beside;      // architectures: captures norm keys' latents beside
  std::vector<std::string> held_inputs;         // architectures: layers hold what attention reads
  std::vector<std::string> delta_net_by_parts;  // architectures: projections are copied apart
  bool delta_net_chunks = false;  // prefills of gated delta nets keep scratch for chunks
  std::vector<CommunicatorRest> communicator_rests;

  // Measured quantities, with the uncertainty the file states.
  Bytes first_capture_modules;
  Bytes load_modules;

  std::vector<std::string> provenance;
};

// Throws ConfigError if the preset file (or its replacement) lacks a row or has a wrong type.
StartupRules startup_rules_for(const Version& version);

}  // namespace oomcast::sglang
