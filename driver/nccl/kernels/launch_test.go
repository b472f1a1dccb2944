package kernels

import (
	"strings"
	"testing"

	"symmem/driver"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// choices lists calls and their kernels. bytes is the size of a part.
var choices = []struct {
	name      string
	operation driver.Operation
	dataType  driver.DataType
	op        driver.ReduceOp
	ranks     int
	bytes     int64
	symmetric bool
	inPlace   bool
	kernel    string // or part of the error
}{
	{
		"small sum, one-shot", driver.AllReduce, driver.BFloat16, driver.Sum, 4,
		8 * kib, true, false, "line_sum_bf16_4",
	},
	{
		"small sum outside windows", driver.AllReduce, driver.BFloat16, driver.Sum, 4,
		8 * kib, false, false, "line_sum_bf16_4",
	},
	{
		"small sum in place", driver.AllReduce, driver.Float16, driver.Max, 2, 2, false, true,
		"line_sum_f16_2",
	},
	{
		"empty sum", driver.AllReduce, driver.Float32, driver.Sum, 2, 0, false, false,
		"line_sum_f32_2",
	},
	{
		"2 ranks, as many warps as chunks", driver.AllReduce,
		driver.Float32, driver.Sum, 2, 1110 * kib, true, false, "line_sum_f32_2",
	},
	{
		"2 ranks, more chunks than warps", driver.AllReduce, driver.Float32, driver.Sum, 2, 1111 * kib,
		true, false, "wide_sum_f32_2",
	},
	{
		"2 ranks, two chunks per warp", driver.AllReduce, driver.Float32, driver.Sum, 2,
		3 * mib, true, false, "unrolled_sum_f32_2",
	},
	{
		"unrolled kernels are for 2 ranks only", driver.ReduceScatter, driver.Float32, driver.Sum, 8, mib,
		false, false, "wide_sum_f32_8",
	},
	{
		"2 ranks, largest line kernel", driver.AllReduce, driver.Float32, driver.Sum, 2, 7 * mib, true,
		false, "wide_sum_f32_2",
	},
	{
		"2 ranks, bulk", driver.AllReduce, driver.Float32, driver.Sum, 2, 7*mib + 4,
		true, false, "bulk_two_shot_f32_2",
	},
	{
		"2 ranks, large but not symmetric", driver.AllReduce, driver.Float32, driver.Sum, 2, 7*mib + 4,
		false, false, "wide_sum_f32_2",
	},
	{
		"4 ranks, largest one-shot sum", driver.AllReduce, driver.Float32, driver.Sum, 4,
		213 * kib, true, false, "line_sum_f32_4",
	},
	{
		"4 ranks, two-shot", driver.AllReduce, driver.Float32, driver.Sum, 4, 214 * kib,
		true, false, "line_two_shot_f32_4",
	},
	{
		"8 ranks, two-shot", driver.AllReduce, driver.Float32, driver.Sum, 8, 110 * kib, true,
		false, "line_two_shot_f32_8",
	},
	{
		"4 ranks, largest two-shot", driver.AllReduce, driver.Int32, driver.Min, 4, 6 * mib, true, false,
		"line_two_shot_i32_4",
	},
	{
		"4 ranks, bulk", driver.AllReduce, driver.Int32, driver.Min, 4, 6*mib + 4,
		true, false, "bulk_two_shot_i32_4",
	},
	{
		"4 ranks, large but not symmetric", driver.AllReduce, driver.Int32, driver.Min, 4, 7 * mib, false,
		false, "line_two_shot_i32_4",
	},
	{
		"larger than exchange memory: in pieces", driver.AllReduce, driver.Int32, driver.Min, 4,
		8 * mib, false, false, "line_two_shot_i32_4",
	},
	{
		"reduce-scatter in pieces", driver.ReduceScatter, driver.Float32, driver.Sum, 2, 64 * mib, false,
		true, "wide_sum_f32_2",
	},
	{
		"copies are not split", driver.AllGather, driver.Int32, driver.Min, 4, 8 * mib, false, false,
		"do not fit into exchange memory",
	},
	{
		"3 ranks use the kernel for up to 8", driver.AllReduce, driver.BFloat16, driver.Avg, 3,
		kib, true, false, "line_sum_bf16_8",
	},
	{
		"reduce-scatter through exchange memory", driver.ReduceScatter, driver.Float32,
		driver.Sum, 2, 2 * mib, false, false, "wide_sum_f32_2",
	},
	{
		"reduce-scatter, bulk", driver.ReduceScatter, driver.Float32, driver.Sum, 4, 4 * mib,
		true, false, "bulk_sum_f32_4",
	},
	{
		"reduce, bulk", driver.Reduce, driver.Float16, driver.Sum, 4, 4 * mib, true, false,
		"bulk_sum_f16_4",
	},
	{
		"copies do not depend on the type", driver.AllGather, driver.Float64, driver.Sum, 4, 8 * kib,
		false, false, "line_copy_4",
	},
	{
		"copies do not depend on the reduction", driver.Broadcast, driver.Uint8, driver.Prod, 5, 7, false,
		false, "line_copy_8",
	},
	{
		"symmetric copy, smallest bulk", driver.AllGather,
		driver.Uint8, driver.Sum, 2, 2*mib + 1, true, false, "bulk_copy_2",
	},
	{
		"other copy, line kernel", driver.AllGather, driver.Uint8, driver.Sum, 2, 2 * mib, false, false,
		"wide_copy_2",
	},
	{
		"large copy, bulk", driver.AllGather, driver.Int64, driver.Sum, 2, 4 * mib,
		true, false, "bulk_copy_2",
	},
	{
		"large copy in place", driver.AllGather, driver.Int64, driver.Sum, 2, 4 * mib, true, true,
		"bulk_copy_2",
	},
	{
		"large all-to-all", driver.AllToAll, driver.Uint8, driver.Sum, 4, 4 * mib,
		true, false, "bulk_copy_4",
	},
	{
		"large all-to-all in place would overwrite parts", driver.AllToAll, driver.Uint8, driver.Sum, 4,
		4 * mib, true, true, "for in-place",
	},
	{
		"small all-to-all in place", driver.AllToAll, driver.Uint8, driver.Sum, 4, kib, false,
		true, "line_copy_4",
	},
	{
		"barrier is an empty copy", driver.Barrier, driver.Uint8, driver.Sum, 4, 0, false, false,
		"line_copy_4",
	},
	{
		"product", driver.AllReduce, driver.Float32, driver.Prod, 2, kib,
		true, false, "wide_any",
	},
	{
		"float64", driver.Reduce, driver.Float64, driver.Sum, 2, kib, true, false,
		"wide_any",
	},
	{
		"int8, two-shot", driver.AllReduce, driver.Int8, driver.Min, 4, 2 * mib, false, true,
		"line_two_shot_any",
	},
	{
		"uint8, bulk two-shot", driver.AllReduce, driver.Uint8, driver.Max, 8, 64 * mib, true, false,
		"bulk_two_shot_any",
	},
	{
		"int64, bulk", driver.ReduceScatter, driver.Int64, driver.Avg, 3, 64 * mib, true, false,
		"bulk_any",
	},
	{
		"sum of uint32, kernel of int32", driver.AllReduce, driver.Uint32, driver.Sum, 2, kib, true,
		false, "line_sum_i32_2",
	},
	{
		"product of uint64", driver.AllReduce, driver.Uint64, driver.Prod, 2, kib, true, false,
		"wide_any",
	},
	{
		"maximum of uint32", driver.AllReduce, driver.Uint32, driver.Max, 2, kib, true, false,
		"symmem has no kernel for AllReduce of uint32 with max",
	},
	{
		"average of uint64", driver.AllReduce, driver.Uint64, driver.Avg, 2, kib, true, false,
		"symmem has no kernel for AllReduce of uint64 with avg",
	},
	{
		"sum with a factor", driver.AllReduce, driver.Float32, driver.PremulSum, 2, kib, true, false,
		"symmem has no kernel for AllReduce of float32 with premul_sum",
	},
	{
		"bitwise OR", driver.AllReduce, driver.Int32, driver.BOr, 2, kib, true, false,
		"symmem has no kernel for AllReduce of int32 with bor",
	},
	{
		"sum of int16", driver.Reduce, driver.Int16, driver.Sum, 2, kib, true, false,
		"symmem has no kernel for Reduce of int16 with sum",
	},
	{
		"copy of uint16", driver.AllGather, driver.Uint16, driver.Sum, 2, kib, false, false,
		"line_copy_2",
	},
	{
		"messages have no kernel", driver.Send, driver.Uint8, driver.Sum, 2, kib, true, false,
		"symmem has no kernel for Send",
	},
	{
		"1 rank", driver.AllReduce, driver.Float32, driver.Sum, 1, kib, true, false, "for 1 ranks",
	},
	{
		"9 ranks", driver.AllReduce, driver.Float32, driver.Sum, 9, kib, true, false, "for 9 ranks",
	},
}

// choose calls Choose on a copy.
func choose(l Launch) (Launch, error) {
	err := l.Choose()
	return l, err
}

func TestChoose(t *testing.T) {
	for _, c := range choices {
		t.Run(c.name, func(t *testing.T) {
			call := &driver.Call{
				Operation: c.operation, DataType: c.dataType, ReduceOp: c.op,
				Count: c.bytes / int64(c.dataType.Size()),
			}
			if !c.inPlace {
				call.Recv = 1 << 40
			}

			l, err := choose(Launch{
				Call: call, Ranks: c.ranks, Symmetric: c.symmetric, Multiprocessors: 132,
			})
			switch {
			case err != nil && !strings.Contains(err.Error(), c.kernel):
				t.Errorf("Choose = %v, want %s", err, c.kernel)
			case err == nil && l.Kernel != c.kernel:
				t.Errorf("Choose chose %s, want %s", l.Kernel, c.kernel)
			case l.Bulk != strings.HasPrefix(l.Kernel, "bulk_"):
				t.Errorf("Choose chose %s with Bulk = %t, want %t", l.Kernel, l.Bulk, !l.Bulk)
			}
		})
	}
}

func TestGridsGrowWithTheSize(t *testing.T) {
	input := Launch{
		Call:  &driver.Call{DataType: driver.Uint8, Operation: driver.AllGather},
		Ranks: 2, Symmetric: true, Multiprocessors: 132,
	}
	for _, c := range []struct {
		name            string
		count           int64
		blocks, threads int
	}{
		{"one warp for a chunk and one for the header", 240, 1, 128},
		{"three chunks fill a block", 720, 1, 128},
		{"four chunks need two blocks", 721, 2, 128},
		{"nearly two small blocks per multiprocessor", 947 * 240, 237, 128},
		{"larger blocks", 948 * 240, 119, 256},
		{"largest blocks", 3792 * 240, 190, 640},
		{"nearly two large blocks per multiprocessor", 4739 * 240, 237, 640},
		{"wide kernel needs half as many blocks", 4740 * 240, 119, 640},
		{"largest wide kernel", 2 * mib, 219, 640},
		{"bulk kernel", 2*mib + 1, 64, 512},
		{"large bulk kernel", 4 * mib, 128, 512},
	} {
		input.Count = c.count
		l, err := choose(input)
		if err != nil {
			t.Fatal(err)
		}

		if l.Blocks != c.blocks || l.Threads != c.threads {
			t.Errorf("%s: got %d blocks of %d threads, want %d of %d", c.name, l.Blocks, l.Threads,
				c.blocks, c.threads)
		}
	}
}
