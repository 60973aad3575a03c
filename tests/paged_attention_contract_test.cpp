// What paged_attention refuses: by name, with what came and what was expected, and nothing written.
#include <gtest/gtest.h>

#include <limits>

#include <functional>

#include "contract/paged_attention.hpp"
#include "support/compare.hpp"
#include "support/paged_problem.hpp"
#include "support/refusal.hpp"

namespace deltaworks::testing {
namespace {

using Problem = PagedProblem<float>;
using Args = PagedAttentionArgs<float>;
using Change = std::function<void(Problem&, Args&)>;

// Two sequences, 20 past and 3 new tokens, 0 past and 2 new ones; 2 · 3 heads of 8.
PagedOptions small_options() {
  PagedOptions o;
  o.head_dim = 8, o.block_size = 4, o.rotary = o.norm = o.sink = o.slots = true;
  return o;
}

void expect_refused(const Change& change, const std::string& expected) {
  Random random(21);
  Problem problem(small_options(), {20, 0}, {3, 2}, random);
  const auto keys = problem.key_cache.values(), values = problem.value_cache.values();
  Buffer<float> output(5 * 6 * 8);
  const auto before = output.values();
  Args args = problem.args(output);
  change(problem, args);
  EXPECT_EQ(message_of([&] { paged_attention(Cpu{}, args); }), "paged_attention: " + expected);
  EXPECT_TRUE(same_bits(problem.key_cache.values(), keys)) << expected;
  EXPECT_TRUE(same_bits(problem.value_cache.values(), values)) << expected;
  EXPECT_TRUE(same_bits(output.values(), before)) << expected;
}

TEST(PagedAttentionRefusalTest, Sequences) {
  expect_refused([](Problem& p, Args&) { p.past[1] = -1; },
                 "past_seqlens[1] is -1, expected at least 0");
  expect_refused(
      [](Problem& p, Args&) { p.past[0] = 30; },
      "sequence 0 has 30 past and 3 new positions, expected at most 28, what 7 blocks of "
      "4 in block_table hold");
  expect_refused(
      [](Problem& p, Args& a) {
        a.cos_cache = view_of<2>(p.cosine, {22, 4}), a.sin_cache = view_of<2>(p.sine, {22, 4});
      },
      "sequence 0 reaches position 22, expected less than 22, the rows of cos_cache");
  expect_refused(
      [](Problem& p, Args&) { p.cu_seqlens[1] = 6; },
      "cu_seqlens falls from 6 to 5 at sequence 1, expected offsets that never decrease");
  expect_refused([](Problem& p, Args&) { p.cu_seqlens[2] = 4; },
                 "cu_seqlens ends at 4, expected 5, the number of tokens");
}

TEST(PagedAttentionRefusalTest, Pages) {
  expect_refused(
      [](Problem& p, Args&) { p.table[2] = -1; },
      "block_table[0, 2] is -1 (unmapped), expected 0 to 9: sequence 0 needs positions 0 "
      "to 22");
  expect_refused([](Problem& p, Args&) { p.table[7] = 10; },
                 "block_table[1, 0] is 10, expected 0 to 9: sequence 1 needs positions 0 to 1");
  expect_refused(
      [](Problem& p, Args& a) {
        p.table[0] = -7, a.local_window_size = 16;
        p.table[1] = -2;
      },
      "block_table[0, 1] is -2, expected 0 to 9: sequence 0 needs positions 5 to 22");
  expect_refused([](Problem& p, Args&) { p.slots[3] = 40; },
                 "slot_mapping[3] is 40, expected -1 to 39");
  expect_refused([](Problem& p, Args&) { p.slots[0] = -2; },
                 "slot_mapping[0] is -2, expected -1 to 39");
  expect_refused(
      [](Problem& p, Args&) {
        p.slots = {-1, 6, -1, -1, 6};
      },
      "token 1 of sequence 0 and token 4 of sequence 1 both write row 2 of block 1, "
      "expected a row of its own for every token");
  expect_refused(
      [](Problem& p, Args& a) {
        a.slot_mapping.reset();
        p.table[7] = p.table[5] = 3;
      },
      "token 0 of sequence 0 and token 3 of sequence 1 both write row 0 of block 3, expected a row "
      "of its own for every token");
}

TEST(PagedAttentionRefusalTest, ShapesAndAttributes) {
  expect_refused(
      [](Problem& p, Args& a) {
        a.key = view_of<3>(p.key, {5, 2, 7});
      },
      "key has shape [5, 2, 7], expected [5, 2, 8]");
  expect_refused([](Problem&, Args& a) { a.sin_cache.reset(); },
                 "sin_cache is missing, expected it: do_rotary is 1");
  expect_refused([](Problem&, Args& a) { a.k_norm_weight.reset(); },
                 "k_norm_weight is missing, expected it: both norms or none");
  expect_refused([](Problem&, Args& a) { a.rotary_offset = 2; },
                 "cos_cache has 4 columns and rotary_offset is 2, expected rotary_offset + 2 · "
                 "columns <= 8, the width of a head");
  expect_refused(
      [](Problem&, Args& a) { a.rotary_offset = std::numeric_limits<std::int64_t>::max(); },
      "rotary_offset is 9223372036854775807, expected 0 to 1024");
  expect_refused([](Problem&, Args& a) { a.local_window_size = 0; },
                 "local_window_size is 0, expected -1 or at least 1");
  expect_refused([](Problem&, Args& a) { a.softcap = -1; },
                 "softcap is -1, expected 0 or a positive number");
  expect_refused([](Problem&, Args& a) { a.scale = std::nanf(""); },
                 "scale is nan, expected a finite number");
  expect_refused(
      [](Problem& p, Args& a) {
        a.key = view_of<3>(p.key, {5, 4, 8});
      },
      "num_heads is 6 and kv_num_heads is 4, expected 1 to 1048576 and a multiple of kv_num_heads");
}

TEST(PagedAttentionRefusalTest, Memory) {
  expect_refused([](Problem&, Args& a) { a.value_cache = a.key_cache; },
                 "key_cache overlaps value_cache, expected separate memory");
  expect_refused(
      [](Problem&, Args& a) {
        a.query = View<const float, 3>(a.output.data(), {5, 6, 8});
      },
      "output overlaps query, expected separate memory");
}

// The node's spelling of the same call.
contract::PagedAttentionOperands node() {
  const DType f = DType::kFloat16, i = DType::kInt32;
  const std::int64_t any = contract::kUnknown;
  contract::PagedAttentionOperands in;
  in.query = {f, 2, {any, 512}};
  in.key = in.value = contract::Tensor{f, 2, {any, 128}};
  in.key_cache = {f, 4, {any, any, 2, 64}};
  in.value_cache = in.key_cache;
  in.cu_seqlens = in.past_seqlens = {i, 1, {any}};
  in.block_table = {i, 2, {any, any}};
  in.num_heads = 8, in.kv_num_heads = 2;
  return in;
}

std::string reason(const contract::PagedAttentionOperands& in) {
  const auto outcome = contract::paged_attention("PagedAttention", in);
  const auto* text = std::get_if<std::string>(&outcome);
  return text == nullptr ? "accepted" : *text;
}

TEST(PagedAttentionContractTest, TakesTheNodeBeforeItsShapesAreKnown) {
  const auto g = std::get<contract::PagedAttentionGeometry>(
      contract::paged_attention("PagedAttention", node()));
  EXPECT_EQ(g.head_dim, 64);
  EXPECT_EQ(g.heads_per_kv(), 4);
  EXPECT_EQ(g.tokens, contract::kUnknown);
  EXPECT_FALSE(g.packed);

  auto open = node();
  open.key_cache.dims = {-1, -1, -1, -1};
  open.value_cache = open.key_cache;
  EXPECT_EQ(
      std::get<contract::PagedAttentionGeometry>(contract::paged_attention("PagedAttention", open))
          .head_dim,
      64);
  open.query.dims = {-1, -1};
  open.key = open.value = contract::Tensor{DType::kFloat16, 2, {-1, -1}};
  EXPECT_EQ(reason(open), "accepted");

  auto packed = node();
  packed.key.reset(), packed.value.reset();
  packed.query.dims = {7, (8 + 2 * 2) * 64};
  const auto p = std::get<contract::PagedAttentionGeometry>(
      contract::paged_attention("PagedAttention", packed));
  EXPECT_TRUE(p.packed);
  EXPECT_EQ(p.tokens, 7);
}

TEST(PagedAttentionContractTest, SaysWhyItRefuses) {
  auto in = node();
  in.kv_cache_layout = "LATENT", in.value_cache.reset();
  EXPECT_EQ(reason(in),
            "PagedAttention: kv_cache_layout is \"LATENT\", expected \"SEPARATE\": a cache shared "
            "by key and value (latent attention) is not served");
  in = node();
  in.k_quant_type = "PER_TENSOR";
  EXPECT_EQ(reason(in),
            "PagedAttention: k_quant_type is \"PER_TENSOR\", expected \"NONE\": quantised caches "
            "are not served, store the cache in the type of query");
  in = node();
  in.v_cache_dtype = "int4";
  EXPECT_EQ(reason(in),
            "PagedAttention: v_cache_dtype is \"int4\", expected \"\" or \"float16\": quantised "
            "caches are not served, store the cache in the type of query");
  in = node();
  in.query.dims[1] = 500;
  EXPECT_EQ(reason(in), "PagedAttention: query has shape [?, 500], expected [?, 512]");
  in = node();
  in.query.dtype = DType::kFloat32;
  EXPECT_EQ(reason(in), "PagedAttention: key_cache has type float16, expected float32");
  in = node();
  in.do_rotary = 1;
  EXPECT_EQ(reason(in), "PagedAttention: cos_cache is missing, expected it: do_rotary is 1");
  in = node();
  in.key.reset();
  EXPECT_EQ(reason(in),
            "PagedAttention: value is given, expected none: key and value come together, or packed "
            "in query");
  in = node();
  in.key_cache.dims[3] = 2048;
  EXPECT_EQ(reason(in),
            "PagedAttention: value_cache has shape [?, ?, 2, 64], expected [?, ?, 2, "
            "2048]");
}

}  // namespace
}  // namespace deltaworks::testing
