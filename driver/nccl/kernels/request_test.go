package kernels

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"symmem/driver"
	"symmem/internal/reduce"
)

// drawRequest draws a call of rank 0. Counts are spread over all sizes.
func drawRequest(t *rapid.T) Request {
	ranks := rapid.IntRange(2, MaxRanks).Draw(t, "ranks")
	size := int64(1) << rapid.IntRange(0, 30).Draw(t, "power")
	call := &driver.Call{
		Operation: driver.Operation(
			min(rapid.IntRange(0, 20).Draw(t, "operation"), int(driver.AllReduceRMSNorm))),
		DataType: rapid.SampledFrom(reduce.DataTypes()).Draw(t, "type"),
		ReduceOp: driver.ReduceOp(rapid.IntRange(0, driver.ReduceOps-1).Draw(t, "reduction")),
		Root:     rapid.IntRange(0, ranks-1).Draw(t, "root"),
		Count:    rapid.Int64Range(0, size).Draw(t, "count"),
	}
	if !rapid.Bool().Draw(t, "in place") {
		call.Recv = 1 << 40
	}
	return Request{
		Call: call, Ranks: ranks, Symmetric: rapid.Bool().Draw(t, "symmetric"),
		Multiprocessors: rapid.IntRange(1, 200).Draw(t, "multiprocessors"),
	}
}

// chooseAll chooses on all ranks, which must find the same or nothing.
func chooseAll(t *rapid.T, request Request) []Launch {
	var all []Launch
	var refusal string
	for request.Rank = range request.Ranks {
		l, err := Choose(&request)
		switch {
		case err == nil:
			all = append(all, l)
		case request.Rank > 0 && err.Error() != refusal:
			t.Fatalf("rank %d: %v, but the ranks before: %q", request.Rank, err, refusal)
		default:
			refusal = err.Error()
		}
	}
	if len(all) != 0 && len(all) != request.Ranks {
		t.Fatalf("%d of %d ranks have a kernel", len(all), request.Ranks)
	}
	return all
}

func TestAllRanksLaunchTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := chooseAll(t, drawRequest(t))
		for r, l := range all {
			l.sendTo, l.recvFrom = all[0].sendTo, all[0].recvFrom
			if l != all[0] {
				t.Fatalf("rank %d launches %+v, but rank 0 %+v", r, l, all[0])
			}
		}
	})
}

// TestWhoIsSentToWaits: lines that nobody reads would be overwritten in time, but a rank that waits
// for lines that nobody sends waits forever.
func TestWhoIsSentToWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := chooseAll(t, drawRequest(t))
		for from := range all {
			for to := range all {
				sends, waits := all[from].sendTo>>to&1, all[to].recvFrom>>from&1
				if from != to && sends != waits {
					t.Fatalf("rank %d sends to %d: %v; %d waits for %d: %v", from, to, sends, to, from,
						waits)
				}
			}
		}
	})
}

// TestLinesFitIntoExchangeMemory: what a call writes lies in its half.
func TestLinesFitIntoExchangeMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		request := drawRequest(t)
		for _, l := range chooseAll(t, request) {
			ranks := int64(request.Ranks)
			room, lines, part := int64(halfBytes), int64(lineLines), l.bytes
			switch {
			case l.Bulk:
				continue
			case strings.HasPrefix(l.Kernel, "wide"), strings.HasPrefix(l.Kernel, "twin"):
				lines = wideLines
			case strings.HasPrefix(l.Kernel, "line_two_shot"):
				room, part = halfBytes/2, l.sendStride
				if l.sendStride%8 != 0 || l.sendStride*ranks < l.bytes {
					t.Fatalf("%d ranks have parts of %d of %d bytes", ranks, l.sendStride, l.bytes)
				}
			}
			need := ranks * chunks(part, lines) * lines * lineBytes
			if need > room {
				t.Fatalf("%s of %d bytes: %d of %d bytes", l.Kernel, l.bytes, need, room)
			}
		}
	})
}

func TestGridsFitOnTheGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		request := drawRequest(t)
		for _, l := range chooseAll(t, request) {
			most := room{min(request.Multiprocessors, maxBulkBlocks), 512}
			if !l.Bulk {
				most = request.resident(familyOf(l.Kernel))
			}
			if l.Blocks < 1 || l.Blocks > most.blocks {
				t.Fatalf("%d blocks of at most %d", l.Blocks, most.blocks)
			}
			// One warp speaks, and one has data.
			if l.Threads%warp != 0 || l.Threads < 2*warp || l.Threads > most.threads {
				t.Fatalf("%d threads", l.Threads)
			}
		}
	})
}

// TestOnlyLargeCallsNeedWindows: small ones go on any memory.
func TestOnlyLargeCallsNeedWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		request := drawRequest(t)
		all := chooseAll(t, request)
		if len(all) == 0 || all[0].Bulk {
			return
		}
		request.Symmetric = !request.Symmetric
		request.Recv ^= 1 << 40 // in place or not
		again := chooseAll(t, request)
		if request.Operation == driver.AllReduceRMSNorm {
			request.Operation = driver.AllReduce // whose kernel it gets
		}
		early := request.Symmetric && all[0].bytes > request.largest()
		if len(again) == 0 || again[0] != all[0] && !(early && again[0].Bulk) {
			t.Fatalf("in other memory: %+v, not %+v", again, all[0])
		}
	})
}
