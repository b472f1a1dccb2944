// The reductions: all-reduce, reduce and reduce-scatter.
#include "start.hpp"
#include "tensors.hpp"

namespace symmem_c10d {
namespace {

using c10d::OpType;

void all_reduce(const Calls& calls, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto [type, reduce] = reduction(tensor, op);
  const auto flat = scaled(tensor, op).contiguous();
  const Elements elements{type, moved(tensor).count};
  auto* data = flat.mutable_data_ptr();
  calls.collective(SYMMEM_ALL_REDUCE, elements, reduce, 0, data, data);
  if (!flat.is_same(tensor)) {
    tensor.copy_(flat);
  }
}

void reduce_scatter_to(
    const Calls& calls,
    const at::Tensor& output,
    const at::Tensor& input,
    const c10d::ReduceOp& op) {
  const auto [type, reduce] = reduction(output, op);
  const auto flat = scaled(input, op).contiguous();
  const Output result(output);
  const Elements elements{type, moved(output).count};
  calls.collective(
      SYMMEM_REDUCE_SCATTER, elements, reduce, 0, flat.const_data_ptr(), result.data());
  result.finish();
}

void reduce_scatter_parts(
    const Calls& calls,
    const at::Tensor& output,
    const Tensors& parts,
    const c10d::ReduceOp& op) {
  const auto [type, reduce] = reduction(output, op);
  const Output result(output);
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) {
    if (const auto found = calls.in_place(parts, {result.flat()})) {
      calls.reduce_scatter_v(found->first, reduce, result.data());
      result.finish();
      return;
    }
  }
  const auto input = scaled(contents(parts), op);
  const Pieces from{input.mutable_data_ptr(), type, moved_counts(parts), {}, 0};
  calls.reduce_scatter_v(from, reduce, result.data());
  result.finish();
}

void reduce_to(
    const Calls& calls,
    const at::Tensor& tensor,
    const c10d::ReduceOp& op,
    int root,
    bool is_root) {
  const auto [type, reduce] = reduction(tensor, op);
  const auto input = scaled(tensor, op).contiguous();
  const auto result = is_root ? input : at::empty_like(input);
  const Elements elements{type, moved(tensor).count};
  calls.collective(
      SYMMEM_REDUCE, elements, reduce, root, input.const_data_ptr(), result.mutable_data_ptr());
  if (is_root && !result.is_same(tensor)) {
    tensor.copy_(result);
  }
}

} // namespace

WorkPointer Group::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto& tensor = only(tensors);
  reduction(tensor, options.reduceOp);
  const Operation operation{OpType::ALLREDUCE, "symmem:all_reduce", options.asyncOp};
  return start(operation, tensors, tensors, [tensor, op = options.reduceOp](const Calls& calls) {
    all_reduce(calls, tensor, op);
  });
}

WorkPointer Group::allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "symmem does not support sparse tensors; convert them with to_dense()");
}

WorkPointer Group::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& options) {
  require_alike(tensors);
  reduction(tensors.at(0), options.reduceOp);
  const Operation operation{
      OpType::ALLREDUCE_COALESCED, "symmem:all_reduce", options.asyncOp};
  return start(operation, tensors, tensors, [tensors, op = options.reduceOp](const Calls& calls) {
    Tensors flats;
    std::vector<struct symmem_call> list;
    for (const auto& tensor : tensors) {
      flats.push_back(scaled(tensor, op).contiguous());
      const auto [type, reduce] = reduction(tensor, op);
      auto& one = list.emplace_back();
      one.operation = SYMMEM_ALL_REDUCE;
      one.type = type;
      one.op = reduce;
      one.count = moved(tensor).count;
      one.recv = flats.back().mutable_data_ptr();
      one.send = one.recv;
    }
    calls.together(std::move(list));
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!flats[i].is_same(tensors[i])) {
        tensors[i].copy_(flats[i]);
      }
    }
  });
}

WorkPointer Group::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto& tensor = only(tensors);
  reduction(tensor, options.reduceOp);
  const auto root = static_cast<int>(options.rootRank);
  const bool is_root = root == getRank();
  const Operation operation{OpType::REDUCE, "symmem:reduce", options.asyncOp};
  return start(
      operation, tensors, tensors,
      [tensor, op = options.reduceOp, root, is_root](const Calls& calls) {
        reduce_to(calls, tensor, op, root, is_root);
      });
}

WorkPointer Group::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  const auto& output = only(outputs);
  TORCH_CHECK_VALUE(
      inputs.size() == 1, "symmem needs exactly one list of inputs, not ", inputs.size());
  const auto parts = inputs.front();
  TORCH_CHECK_VALUE(
      parts.size() == static_cast<size_t>(getSize()), "the list has ", parts.size(),
      " inputs, but needs one for each of the ", getSize(), " ranks");
  require_alike(parts);
  reduction(output, options.reduceOp);
  require_same(output, parts[getRank()]);
  const Operation operation{
      OpType::REDUCE_SCATTER, "symmem:reduce_scatter", options.asyncOp};
  return start(
      operation, parts, outputs,
      [output, parts, op = options.reduceOp](const Calls& calls) {
        if (calls.is_uneven(parts, output)) {
          reduce_scatter_parts(calls, output, parts, op);
        } else {
          reduce_scatter_to(calls, output, contents(parts), op);
        }
      });
}

WorkPointer Group::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  require_parts(input, output, getSize());
  reduction(output, options.reduceOp);
  const Operation operation{
      OpType::_REDUCE_SCATTER_BASE, "symmem:reduce_scatter", options.asyncOp};
  return start(
      operation, {input}, {output},
      [output = output, input = input, op = options.reduceOp](const Calls& calls) {
        reduce_scatter_to(calls, output, input, op);
      });
}

WorkPointer Group::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(), "lists of one length");
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_parts(inputs[i], outputs[i], getSize());
    reduction(outputs[i], options.reduceOp);
  }
  const Operation operation{OpType::COALESCED, "symmem:reduce_scatter", options.asyncOp};
  return start(
      operation, inputs, outputs, [outputs, inputs, op = options.reduceOp](const Calls& calls) {
        Tensors flats;
        std::vector<Output> results;
        std::vector<struct symmem_call> list;
        for (size_t i = 0; i < inputs.size(); ++i) {
          flats.push_back(scaled(inputs[i], op).contiguous());
          results.emplace_back(outputs[i]);
          const auto [type, reduce] = reduction(outputs[i], op);
          auto& one = list.emplace_back();
          one.operation = SYMMEM_REDUCE_SCATTER;
          one.type = type;
          one.op = reduce;
          one.count = moved(outputs[i]).count;
          one.send = flats.back().const_data_ptr();
          one.recv = results.back().data();
        }
        calls.together(std::move(list));
        for (const auto& result : results) {
          result.finish();
        }
      });
}

} // namespace symmem_c10d
