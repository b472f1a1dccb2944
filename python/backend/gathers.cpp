// The operations that copy data: broadcast, gathers, scatter and all-to-all.
#include "start.hpp"
#include "tensors.hpp"

namespace symmem_c10d {
namespace {

using c10d::OpType;

void broadcast_from(const Calls& calls, const at::Tensor& tensor, int root) {
  const Output output(tensor);
  calls.collective(
      SYMMEM_BROADCAST, moved(tensor), SYMMEM_SUM, root, output.data(), output.data());
  output.finish();
}

void all_gather(const Calls& calls, const at::Tensor& output, const at::Tensor& input) {
  const auto flat = input.contiguous();
  const Output result(output);
  calls.collective(
      SYMMEM_ALL_GATHER, moved(flat), SYMMEM_SUM, 0, flat.const_data_ptr(), result.data());
  result.finish();
}

// Exchanges contiguous parts of two tensors. The counts are in elements of the tensors.
void exchange(
    const Calls& calls,
    const at::Tensor& output,
    const at::Tensor& input,
    std::vector<int64_t> recv_counts,
    std::vector<int64_t> send_counts) {
  const auto& some = input.numel() != 0 ? input : output;
  const auto [type, count] = moved(some);
  const auto factor = some.numel() == 0 ? 1 : count / some.numel();
  for (auto* counts : {&recv_counts, &send_counts}) {
    for (auto& n : *counts) {
      n *= factor;
    }
  }
  calls.all_to_all_v(
      {const_cast<void*>(input.const_data_ptr()), type, std::move(send_counts), {}, 0},
      {output.mutable_data_ptr(), type, std::move(recv_counts), {}, 0});
}

// Scatters large parts from the places where they are. On the host backend, SYMMEM_SCATTER needs
// parts that are contiguous.
void scatter_large(
    const Calls& calls,
    const at::Tensor& output,
    const Tensors& parts,
    int root,
    int size) {
  const auto count = moved(output).count;
  Pieces to{output.mutable_data_ptr(), moved(output).type, std::vector<int64_t>(size), {}, 0};
  to.counts[root] = count;
  Pieces from{nullptr, to.type, std::vector<int64_t>(size), {}, 0};
  at::Tensor copied;
  if (!parts.empty()) {
    if (const auto found = calls.in_place(parts, {output})) {
      from = found->first;
    } else {
      copied = contents(parts);
      from.base = copied.mutable_data_ptr();
      from.counts.assign(size, count);
    }
  }
  calls.all_to_all_v(from, to);
}

// Copies consecutive parts of a one-dimensional tensor to separate tensors.
void distribute(const at::Tensor& whole, const Tensors& tensors) {
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    tensor.copy_(whole.narrow(0, offset, tensor.numel()).view_as(tensor));
    offset += tensor.numel();
  }
}

std::vector<int64_t> counts_of(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) {
    counts.push_back(tensor.numel());
  }
  return counts;
}

// Gathers large parts to the places where they are. On the host backend, SYMMEM_GATHER writes
// contiguous parts.
void gather_large(
    const Calls& calls,
    const Tensors& parts,
    const at::Tensor& input,
    int root,
    int size) {
  const auto [type, count] = moved(input);
  Pieces from{const_cast<void*>(input.const_data_ptr()), type, std::vector<int64_t>(size), {}, 0};
  from.counts[root] = count;
  if (parts.empty()) {
    calls.all_to_all_v(from, {nullptr, type, std::vector<int64_t>(size), {}, 0});
    return;
  }
  if (const auto found = calls.in_place({input}, parts)) {
    calls.all_to_all_v(from, found->second);
    return;
  }
  bool shared = false;
  const auto output = joined(parts, shared);
  calls.all_to_all_v(
      from, {output.mutable_data_ptr(), type, std::vector<int64_t>(size, count), {}, 0});
  if (!shared) {
    distribute(output, parts);
  }
}

// Gathers one tensor from each rank. The sizes may differ.
void all_gather_list(const Calls& calls, const Tensors& outputs, const at::Tensor& input) {
  const auto flat = input.contiguous();
  const bool is_uneven = calls.is_uneven(outputs, flat);
  if (is_uneven) {
    if (const auto found = calls.in_place({flat}, outputs)) {
      calls.all_gather_v(flat.const_data_ptr(), found->second);
      return;
    }
  }
  bool shared = false;
  const auto output = joined(outputs, shared);
  if (is_uneven) {
    const Pieces to{
        output.mutable_data_ptr(), moved(output).type, moved_counts(outputs), {}, 0};
    calls.all_gather_v(flat.const_data_ptr(), to);
  } else {
    all_gather(calls, output, flat);
  }
  if (!shared) {
    distribute(output, outputs);
  }
}

void all_to_all_lists(const Calls& calls, const Tensors& outputs, const Tensors& inputs) {
  if (const auto found = calls.in_place(inputs, outputs)) {
    calls.all_to_all_v(found->first, found->second);
    return;
  }
  bool shared = false;
  const auto output = joined(outputs, shared);
  exchange(calls, output, contents(inputs), counts_of(outputs), counts_of(inputs));
  if (!shared) {
    distribute(output, outputs);
  }
}

// Returns each rank's number of elements of a tensor that is split along its first dimension.
std::vector<int64_t> counts_of(
    const at::Tensor& tensor,
    const std::vector<int64_t>& splits,
    int size) {
  const auto length = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(
        length % size == 0, "the size of the first dimension, ", length,
        ", is not a multiple of the number of ranks, ", size);
    return std::vector<int64_t>(size, tensor.numel() / size);
  }
  int64_t sum = 0;
  auto counts = splits;
  for (auto& count : counts) {
    TORCH_CHECK_VALUE(count >= 0, "a split size is negative: ", count);
    sum += count;
    count = length == 0 ? 0 : count * (tensor.numel() / length);
  }
  TORCH_CHECK_VALUE(
      counts.size() == static_cast<size_t>(size) && sum == length,
      "the split sizes are for ", counts.size(), " ranks and ", sum, " rows, but the group has ",
      size, " ranks and the tensor ", length, " rows");
  return counts;
}

} // namespace

WorkPointer Group::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto& tensor = only(tensors);
  const auto root = static_cast<int>(options.rootRank);
  const Operation operation{OpType::BROADCAST, "symmem:broadcast", options.asyncOp};
  return start(operation, tensors, tensors, [tensor, root](const Calls& calls) {
    broadcast_from(calls, tensor, root);
  });
}

WorkPointer Group::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  const auto& input = only(inputs);
  TORCH_CHECK_VALUE(
      outputs.size() == 1, "symmem needs exactly one list of outputs, not ", outputs.size());
  const auto parts = outputs.front();
  TORCH_CHECK_VALUE(
      parts.size() == static_cast<size_t>(getSize()), "the list has ", parts.size(),
      " outputs, but needs one for each of the ", getSize(), " ranks");
  require_alike(parts);
  TORCH_CHECK_VALUE(
      parts[getRank()].numel() == input.numel() && parts[0].scalar_type() == input.scalar_type(),
      "the output for this rank has ", parts[getRank()].numel(), " elements of type ",
      parts[0].scalar_type(), ", but the input has ", input.numel(), " of type ",
      input.scalar_type());
  const Operation operation{OpType::ALLGATHER, "symmem:all_gather", options.asyncOp};
  return start(operation, inputs, parts, [parts, input](const Calls& calls) {
    all_gather_list(calls, parts, input);
  });
}

WorkPointer Group::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  require_parts(output, input, getSize());
  const Operation operation{OpType::_ALLGATHER_BASE, "symmem:all_gather", options.asyncOp};
  return start(operation, {input}, {output}, [output = output, input = input](const Calls& calls) {
    all_gather(calls, output, input);
  });
}

WorkPointer Group::allgather_coalesced(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  // outputs has a list for each rank, and each list has a tensor for each input.
  TORCH_CHECK_VALUE(
      outputs.size() == static_cast<size_t>(getSize()), "there are ", outputs.size(),
      " lists of outputs, but one is needed for each of the ", getSize(), " ranks");
  TORCH_CHECK_VALUE(!inputs.empty(), "the list of inputs is empty");
  std::vector<Tensors> lists(inputs.size());
  Tensors all;
  for (const auto& list : outputs) {
    TORCH_CHECK_VALUE(
        list.size() == inputs.size(), "a list has ", list.size(), " outputs for ", inputs.size(),
        " inputs; pass one output for each input");
    for (size_t i = 0; i < list.size(); ++i) {
      lists[i].push_back(list[i]);
      all.push_back(list[i]);
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_alike(lists[i]);
    require_same(lists[i][getRank()], inputs[i]);
  }
  const Operation operation{OpType::ALLGATHER_COALESCED, "symmem:all_gather", options.asyncOp};
  return start(operation, inputs, all, [lists, inputs](const Calls& calls) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      all_gather_list(calls, lists[i], inputs[i]);
    }
  });
}

WorkPointer Group::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(
      outputs.size() == inputs.size() && !inputs.empty(), "there are ", outputs.size(),
      " outputs and ", inputs.size(), " inputs; pass the same number of both, at least one");
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_parts(outputs[i], inputs[i], getSize());
  }
  const Operation operation{OpType::COALESCED, "symmem:all_gather", options.asyncOp};
  return start(operation, inputs, outputs, [outputs, inputs](const Calls& calls) {
    Tensors flats;
    std::vector<Output> results;
    std::vector<struct symmem_call> list;
    for (size_t i = 0; i < inputs.size(); ++i) {
      flats.push_back(inputs[i].contiguous());
      results.emplace_back(outputs[i]);
      auto& one = list.emplace_back();
      one.operation = SYMMEM_ALL_GATHER;
      one.type = moved(flats.back()).type;
      one.count = moved(flats.back()).count;
      one.send = flats.back().const_data_ptr();
      one.recv = results.back().data();
    }
    calls.together(std::move(list));
    for (const auto& result : results) {
      result.finish();
    }
  });
}

WorkPointer Group::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  const auto& input = only(inputs);
  const auto root = static_cast<int>(options.rootRank);
  const int size = getSize();
  const bool is_root = root == getRank();
  TORCH_CHECK_VALUE(
      outputs.size() == (is_root ? 1 : 0), "pass a list of outputs on the root, and only there");
  const auto parts = is_root ? outputs.front() : Tensors();
  require_alike(parts);
  TORCH_CHECK_VALUE(
      !is_root || (parts.size() == static_cast<size_t>(size) && same_size(parts)),
      "the root needs ", size, " outputs of the same size");
  if (is_root) {
    require_same(parts.front(), input);
  }
  const Operation operation{OpType::GATHER, "symmem:gather", options.asyncOp};
  return start(operation, inputs, parts, [=](const Calls& calls) {
    const auto flat = input.contiguous();
    if (is_large(flat)) {
      gather_large(calls, parts, flat, root, size);
      return;
    }
    bool shared = false;
    const auto output = is_root ? joined(parts, shared) : at::Tensor();
    calls.collective(
        SYMMEM_GATHER, moved(flat), SYMMEM_SUM, root, flat.const_data_ptr(),
        is_root ? output.mutable_data_ptr() : nullptr);
    if (is_root && !shared) {
      distribute(output, parts);
    }
  });
}

WorkPointer Group::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  const auto& output = only(outputs);
  const auto root = static_cast<int>(options.rootRank);
  const int size = getSize();
  const bool is_root = root == getRank();
  TORCH_CHECK_VALUE(
      inputs.size() == (is_root ? 1 : 0), "pass a list of inputs on the root, and only there");
  const auto parts = is_root ? inputs.front() : Tensors();
  require_alike(parts);
  TORCH_CHECK_VALUE(
      !is_root || (parts.size() == static_cast<size_t>(size) && same_size(parts)),
      "the root needs ", size, " inputs of the same size");
  if (is_root) {
    require_same(parts.front(), output);
  }
  const Operation operation{OpType::SCATTER, "symmem:scatter", options.asyncOp};
  return start(operation, parts, outputs, [=](const Calls& calls) {
    const Output result(output);
    if (is_large(output)) {
      scatter_large(calls, result.flat(), parts, root, size);
      result.finish();
      return;
    }
    const auto input = is_root ? contents(parts) : at::Tensor();
    calls.collective(
        SYMMEM_SCATTER, moved(output), SYMMEM_SUM, root,
        is_root ? input.const_data_ptr() : nullptr, result.data());
    result.finish();
  });
}

WorkPointer Group::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  require_alike({input, output});
  const auto received = counts_of(output, output_splits, getSize());
  const auto sent = counts_of(input, input_splits, getSize());
  const bool even = output_splits.empty() && input_splits.empty();
  if (even) {
    require_same(input, output);
  }
  const Operation operation{OpType::ALLTOALL_BASE, "symmem:all_to_all", options.asyncOp};
  return start(operation, {input}, {output}, [=](const Calls& calls) {
    const auto flat = input.contiguous();
    const Output result(output);
    if (even) {
      auto elements = moved(flat);
      elements.count /= static_cast<int64_t>(sent.size());
      calls.collective(
          SYMMEM_ALL_TO_ALL, elements, SYMMEM_SUM, 0, flat.const_data_ptr(), result.data());
    } else {
      exchange(calls, result.flat(), flat, received, sent);
    }
    result.finish();
  });
}

WorkPointer Group::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& options) {
  const auto size = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(
      outputs.size() == size && inputs.size() == size, "the lists have ", outputs.size(),
      " outputs and ", inputs.size(), " inputs, but need one of each for each of the ", size,
      " ranks");
  require_alike(inputs);
  require_alike(outputs);
  const Operation operation{OpType::ALLTOALL, "symmem:all_to_all", options.asyncOp};
  return start(operation, inputs, outputs, [inputs, outputs](const Calls& calls) {
    all_to_all_lists(calls, outputs, inputs);
  });
}

#ifdef C10D_BACKEND_HAS_WINDOW
WorkPointer Group::gather_single(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::GatherOptions& options) {
  Tensors inputs{input};
  std::vector<Tensors> outputs;
  if (options.rootRank == getRank()) {
    require_parts(output, input, getSize());
    outputs.push_back(output.view({getSize(), input.numel()}).unbind());
  }
  return gather(outputs, inputs, options);
}
#endif

} // namespace symmem_c10d
