package kernels

import (
	"strings"
	"testing"

	"symmem/driver"
)

// kib and mib are sizes in elements of one byte.
const (
	kib = 1 << 10
	mib = 1 << 20
)

// choices say which kernel a call gets. Sizes are those of a part, in bytes.
var choices = []struct {
	sentence  string
	operation driver.Operation
	dataType  driver.DataType
	op        driver.ReduceOp
	ranks     int
	bytes     int64
	symmetric bool
	inPlace   bool
	kernel    string // or what is wrong
}{
	{
		"a small sum goes in one step", driver.AllReduce, driver.BFloat16, driver.Sum, 4,
		8 * kib, true, false, "line_sum_bf16_4",
	},
	{
		"as it does outside of windows", driver.AllReduce, driver.BFloat16, driver.Sum, 4,
		8 * kib, false, false, "line_sum_bf16_4",
	},
	{
		"and in place", driver.AllReduce, driver.Float16, driver.Max, 2, 2, false, true,
		"line_sum_f16_2",
	},
	{
		"and of nothing", driver.AllReduce, driver.Float32, driver.Sum, 2, 0, false, false,
		"line_sum_f32_2",
	},
	{
		"two ranks take one step while there is a warp for each chunk", driver.AllReduce,
		driver.Float32, driver.Sum, 2, 1110 * kib, true, false, "line_sum_f32_2",
	},
	{
		"and of packs above", driver.AllReduce, driver.Float32, driver.Sum, 2, 1111 * kib,
		true, false, "wide_sum_f32_2",
	},
	{
		"two for each warp if that is enough", driver.AllReduce, driver.Float32, driver.Sum, 2,
		3 * mib, true, false, "unrolled_sum_f32_2",
	},
	{
		"but with more ranks there is none", driver.ReduceScatter, driver.Float32, driver.Sum, 8, mib,
		false, false, "wide_sum_f32_8",
	},
	{
		"up to 7 MiB", driver.AllReduce, driver.Float32, driver.Sum, 2, 7 * mib, true, false,
		"wide_sum_f32_2",
	},
	{
		"then they go over the buffers", driver.AllReduce, driver.Float32, driver.Sum, 2, 7*mib + 4,
		true, false, "bulk_two_shot_f32_2",
	},
	{
		"unless these are not symmetric", driver.AllReduce, driver.Float32, driver.Sum, 2, 7*mib + 4,
		false, false, "wide_sum_f32_2",
	},
	{
		"four ranks take one step up to 213 KiB", driver.AllReduce, driver.Float32, driver.Sum, 4,
		213 * kib, true, false, "line_sum_f32_4",
	},
	{
		"and two above, which send less", driver.AllReduce, driver.Float32, driver.Sum, 4, 214 * kib,
		true, false, "line_two_shot_f32_4",
	},
	{
		"more ranks do so earlier", driver.AllReduce, driver.Float32, driver.Sum, 8, 110 * kib, true,
		false, "line_two_shot_f32_8",
	},
	{
		"two steps are for 6 MiB", driver.AllReduce, driver.Int32, driver.Min, 4, 6 * mib, true, false,
		"line_two_shot_i32_4",
	},
	{
		"larger ones go over the buffers", driver.AllReduce, driver.Int32, driver.Min, 4, 6*mib + 4,
		true, false, "bulk_two_shot_i32_4",
	},
	{
		"unless they are not symmetric", driver.AllReduce, driver.Int32, driver.Min, 4, 7 * mib, false,
		false, "line_two_shot_i32_4",
	},
	{
		"in pieces above what exchange memory holds", driver.AllReduce, driver.Int32, driver.Min, 4,
		8 * mib, false, false, "line_two_shot_i32_4",
	},
	{
		"as other reductions go", driver.ReduceScatter, driver.Float32, driver.Sum, 2, 64 * mib, false,
		true, "wide_sum_f32_2",
	},
	{
		"but copies do not", driver.AllGather, driver.Int32, driver.Min, 4, 8 * mib, false, false,
		"do not fit into exchange memory",
	},
	{
		"three ranks have the kernel of up to eight", driver.AllReduce, driver.BFloat16, driver.Avg, 3,
		kib, true, false, "line_sum_bf16_8",
	},
	{
		"parts of a reduce-scatter go through exchange memory", driver.ReduceScatter, driver.Float32,
		driver.Sum, 2, 2 * mib, false, false, "wide_sum_f32_2",
	},
	{
		"larger ones over the buffers", driver.ReduceScatter, driver.Float32, driver.Sum, 4, 4 * mib,
		true, false, "bulk_sum_f32_4",
	},
	{
		"so do sums at a root", driver.Reduce, driver.Float16, driver.Sum, 4, 4 * mib, true, false,
		"bulk_sum_f16_4",
	},
	{
		"copies do not look at the type", driver.AllGather, driver.Float64, driver.Sum, 4, 8 * kib,
		false, false, "line_copy_4",
	},
	{
		"nor at the reduction", driver.Broadcast, driver.Uint8, driver.Prod, 5, 7, false, false,
		"line_copy_8",
	},
	{
		"copies of symmetric buffers go over them earlier than they must", driver.AllGather,
		driver.Uint8, driver.Sum, 2, 2*mib + 1, true, false, "bulk_copy_2",
	},
	{
		"and others in lines", driver.AllGather, driver.Uint8, driver.Sum, 2, 2 * mib, false, false,
		"wide_copy_2",
	},
	{
		"large copies go over the buffers", driver.AllGather, driver.Int64, driver.Sum, 2, 4 * mib,
		true, false, "bulk_copy_2",
	},
	{
		"also in place", driver.AllGather, driver.Int64, driver.Sum, 2, 4 * mib, true, true,
		"bulk_copy_2",
	},
	{
		"an all-to-all does so out of place", driver.AllToAll, driver.Uint8, driver.Sum, 4, 4 * mib,
		true, false, "bulk_copy_4",
	},
	{
		"but not in place, where a part would be lost", driver.AllToAll, driver.Uint8, driver.Sum, 4,
		4 * mib, true, true, "in place of parts",
	},
	{
		"a small all-to-all may be in place", driver.AllToAll, driver.Uint8, driver.Sum, 4, kib, false,
		true, "line_copy_4",
	},
	{
		"a barrier is a copy of nothing", driver.Barrier, driver.Uint8, driver.Sum, 4, 0, false, false,
		"line_copy_4",
	},
	{
		"products have a kernel for all types", driver.AllReduce, driver.Float32, driver.Prod, 2, kib,
		true, false, "wide_any",
	},
	{
		"and so have doubles", driver.Reduce, driver.Float64, driver.Sum, 2, kib, true, false,
		"wide_any",
	},
	{
		"and one of two steps", driver.AllReduce, driver.Int8, driver.Min, 4, 2 * mib, false, true,
		"line_two_shot_any",
	},
	{
		"and over the buffers", driver.AllReduce, driver.Uint8, driver.Max, 8, 64 * mib, true, false,
		"bulk_two_shot_any",
	},
	{
		"of parts, too", driver.ReduceScatter, driver.Int64, driver.Avg, 3, 64 * mib, true, false,
		"bulk_any",
	},
	{
		"messages have no kernel", driver.Send, driver.Uint8, driver.Sum, 2, kib, true, false,
		"no kernel of symmem's own for Send",
	},
	{
		"nor has one rank", driver.AllReduce, driver.Float32, driver.Sum, 1, kib, true, false,
		"for 1 ranks",
	},
	{
		"nor have nine", driver.AllReduce, driver.Float32, driver.Sum, 9, kib, true, false,
		"for 9 ranks",
	},
}

// choose is Choose of a launch that stays what it was.
func choose(l Launch) (Launch, error) {
	err := l.Choose()
	return l, err
}

func TestChoose(t *testing.T) {
	for _, c := range choices {
		t.Run(c.sentence, func(t *testing.T) {
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
				t.Errorf("got %v, want %s", err, c.kernel)
			case err == nil && l.Kernel != c.kernel:
				t.Errorf("got %s, want %s", l.Kernel, c.kernel)
			case l.Bulk != strings.HasPrefix(l.Kernel, "bulk_"):
				t.Errorf("%s: bulk is %v", l.Kernel, l.Bulk)
			}
		})
	}
}

func TestGridsGrowWithTheMessage(t *testing.T) {
	asked := Launch{
		Call:  &driver.Call{DataType: driver.Uint8, Operation: driver.AllGather},
		Ranks: 2, Symmetric: true, Multiprocessors: 132,
	}
	for _, c := range []struct {
		sentence        string
		count           int64
		blocks, threads int
	}{
		{"a chunk has one warp, and the words between ranks one", 240, 1, 128},
		{"three chunks fill a block", 720, 1, 128},
		{"a fourth begins the next", 721, 2, 128},
		{"two small blocks a multiprocessor come before larger ones", 947 * 240, 237, 128},
		{"then blocks grow", 948 * 240, 119, 256},
		{"up to 640 threads", 3792 * 240, 190, 640},
		{"of which there are nearly two on each", 4739 * 240, 237, 640},
		{"packs need half as many", 4740 * 240, 119, 640},
		{"and never more", 2 * mib, 219, 640},
		{"buffers of peers get more", 2*mib + 1, 64, 512},
		{"and large ones most", 4 * mib, 128, 512},
	} {
		asked.Count = c.count
		l, err := choose(asked)
		if err != nil {
			t.Fatal(err)
		}
		if l.Blocks != c.blocks || l.Threads != c.threads {
			t.Errorf("%s: got %d blocks of %d threads, want %d of %d", c.sentence, l.Blocks, l.Threads,
				c.blocks, c.threads)
		}
	}
}
