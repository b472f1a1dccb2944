package alloc

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestRequestsAreRoundedToBlocks(t *testing.T) {
	for _, row := range []struct {
		name          string
		config        Config
		request, want int64
	}{
		{"one byte needs a unit", Default(), 1, 512},
		{"a whole unit is not rounded", Default(), 512, 512},
		{"one more byte needs a second unit", Default(), 513, 1024},
		{"PyTorch rounds the same way", PyTorch(), 1_000_000, 1_000_448},
		{"the largest request is not rounded", Default(), MaxSize, MaxSize},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCore(t, row.config)
			_, grow, err := c.Alloc(row.request, 0)
			if err == nil {
				_, err = c.AddSegment(grow, 0)
			}

			if err != nil {
				t.Fatal(err)
			}

			if got, _, err := c.Alloc(row.request, 0); err != nil || got.Size != row.want {
				t.Errorf("Alloc(%d) = %d bytes, %v; want %d", row.request, got.Size, err, row.want)
			}
		})
	}
}

func TestSegmentSize(t *testing.T) {
	for _, row := range []struct {
		name            string
		config          Config
		mapped, request int64
		want            int64
	}{
		{"the first segment is First", Default(), 0, 512, 64 * mib},
		{"a large first request makes a large first segment", Default(), 0, 99 * mib, 100 * mib},
		{"no segment is smaller than First", Default(), 32 * mib, 512, 64 * mib},
		{"later segments double the mapped memory", Default(), 128 * mib, 512, 128 * mib},
		{"a larger request makes a larger segment", Default(), 128 * mib, 200*mib + 1, 202 * mib},
		{"PyTorch: 1 MiB needs 2 MiB", PyTorch(), 0, 1 * mib, 2 * mib},
		{"PyTorch: above 1 MiB needs 20 MiB", PyTorch(), 0, 1*mib + 512, 20 * mib},
		{"PyTorch: below 10 MiB needs 20 MiB", PyTorch(), 0, 10*mib - 512, 20 * mib},
		{"PyTorch: 10 MiB gets a separate segment", PyTorch(), 0, 10 * mib, 10 * mib},
		{"PyTorch: large segments are multiples of 2 MiB", PyTorch(), 0, 11 * mib, 12 * mib},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCore(t, row.config)
			c.mappedBytes = row.mapped
			if got := c.config.segmentSize(row.request, c.mappedBytes); got != row.want {
				t.Errorf("segmentSize(%d) = %d, want %d", row.request, got, row.want)
			}
		})
	}
}

func TestSplits(t *testing.T) {
	for _, row := range []struct {
		name               string
		config             Config
		rounded, remainder int64
		want               bool
	}{
		{"a remainder of one unit is split off", Default(), 9 * mib, 512, true},
		{"without a remainder there is no split", Default(), 9 * mib, 0, false},
		{"PyTorch splits small blocks to the unit", PyTorch(), 1 * mib, 512, true},
		{"PyTorch does not split 1 MiB off large blocks", PyTorch(), 19 * mib, 1 * mib, false},
		{"PyTorch splits off more than 1 MiB", PyTorch(), 9 * mib, 11 * mib, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := newCore(t, row.config).config.shouldSplit(row.rounded, row.remainder)
			if got != row.want {
				t.Errorf("splits(%d, %d) = %t, want %t", row.rounded, row.remainder, got, row.want)
			}
		})
	}
}

func TestNewRefusesInvalidConfigs(t *testing.T) {
	for _, row := range []struct {
		name   string
		config Config
	}{
		{"an unknown policy", Config{Policy: 2}},
		{"an unknown sizing", Config{Sizing: 2}},
		{"a negative capacity", Config{Capacity: -1}},
		{"a negative first segment", Config{First: -1}},
		{"a granularity below the unit", Config{Granularity: 256}},
		{"a granularity that is not a power of two", Config{Granularity: 3 * mib}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := New(row.config); !errors.Is(err, ErrConfig) {
				t.Errorf("New(%+v) = %v, want ErrConfig", row.config, err)
			}
		})
	}
}

func TestZeroConfigIsTheDefault(t *testing.T) {
	if got := newCore(t, Config{}).config; got != Default() {
		t.Errorf("New(Config{}) uses %+v, want %+v", got, Default())
	}
}

func TestInvalidSizesAreRefused(t *testing.T) {
	c := newCore(t, Default())
	for _, size := range []int64{0, -1, -1 << 63, MaxSize + 1, 1<<63 - 1} {
		_, _, allocErr := c.Alloc(size, 0)
		_, reserveErr := c.Reserve(size, 0)
		for _, err := range []error{allocErr, reserveErr, c.GrowFailed(size, 0)} {
			if !errors.Is(err, ErrSize) {
				t.Errorf("size %d: got %v, want ErrSize", size, err)
			}
		}
	}

	for _, bytes := range []int64{0, -512, 511, MaxSize + 512} {
		if _, err := c.AddSegment(Growth{Bytes: bytes}, 0); !errors.Is(err, ErrSize) {
			t.Errorf("AddSegment of %d bytes: got %v, want ErrSize", bytes, err)
		}
	}

	_, growth, _ := c.Alloc(5*mib, 0)
	growth.Bytes = 4 * mib
	if _, err := c.AddSegment(growth, 0); !errors.Is(err, ErrSize) {
		t.Errorf("AddSegment of less memory than requested: got %v, want ErrSize", err)
	}
}

func TestOutOfMemoryErrorReportsFreeMemory(t *testing.T) {
	c := newCore(t, Config{Capacity: 8 * mib, Granularity: mib, First: 4 * mib})
	first := mustAlloc(t, c, 3*mib, 7)
	mustAlloc(t, c, 3*mib, 7)
	if _, err := c.Free(first); err != nil {
		t.Fatal(err)
	}

	want := OutOfMemoryError{
		Requested: 5 * mib, Free: 5 * mib, LargestFree: 4 * mib,
		Capacity: 8 * mib,
	}
	_, _, allocErr := c.Alloc(5*mib, 7)
	for _, err := range []error{allocErr, c.GrowFailed(5*mib, 7)} {
		var got *OutOfMemoryError
		if !errors.As(err, &got) || *got != want || !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("got error %v, want %v", err, &want)
		}
	}

	if text := want.Error(); !strings.Contains(text, "requested 5242880") {
		t.Errorf("error %q does not contain the requested size", text)
	}

	if err := c.Verify(); err != nil {
		t.Error(err)
	}
}

func TestAddressPolicyRefusesInvalidAddresses(t *testing.T) {
	for _, address := range []uint64{1, 511, 1 << 47, 1<<47 - 512, 1<<64 - 512} {
		for _, policy := range []Policy{CreationOrder, AddressOrder} {
			c := newCore(t, Config{Policy: policy})
			_, grow, _ := c.Alloc(1, 0)
			_, err := c.AddSegment(grow, address)
			if want := policy == AddressOrder; errors.Is(err, ErrAddress) != want {
				t.Errorf("%s policy, AddSegment at %#x: got %v, want ErrAddress: %t", policy, address, err,
					want)
			}
		}
	}
}

func TestSegmentBeyondArenaIsRefused(t *testing.T) {
	c := newCore(t, Default())
	for range 2 {
		if _, err := c.AddSegment(Growth{Bytes: MaxSize}, 0); err != nil {
			t.Fatal(err)
		}

		c.Trim(0)
	}

	if _, err := c.AddSegment(Growth{Bytes: Unit}, 0); !errors.Is(err, ErrExhausted) {
		t.Errorf("AddSegment beyond the arena: got %v, want ErrExhausted", err)
	}
}

func TestUnknownHandlesReturnErrForeign(t *testing.T) {
	c := newCore(t, Default())
	own := mustAlloc(t, c, 4096, 0)
	for _, h := range []Handle{0, makeHandle(1, 9), makeHandle(1000, 0)} {
		if _, _, err := c.FreeHandle(h); !errors.Is(err, ErrForeign) {
			t.Errorf("FreeHandle(%#x) = %v, want ErrForeign", h, err)
		}

		if err := c.Use(h, 1); !errors.Is(err, ErrForeign) {
			t.Errorf("Use(%#x) = %v, want ErrForeign", h, err)
		}

		if _, err := c.Pin(h); !errors.Is(err, ErrForeign) {
			t.Errorf("Pin(%#x) = %v, want ErrForeign", h, err)
		}
	}

	if state, err := c.Free(own); state != Free || err != nil {
		t.Errorf("Free of a live block = %s, %v; want free", state, err)
	}
}

func TestHandleFindsAndFreesItsBlock(t *testing.T) {
	c := newCore(t, Default())
	mustAlloc(t, c, 512, 0)
	own := mustAlloc(t, c, 4096, 0)
	if v, err := c.LiveBlock(own.Handle); v != own || err != nil {
		t.Errorf("Live = %+v, %v; want %+v", v, err, own)
	}

	if v, state, err := c.FreeHandle(own.Handle); v != own || state != Free || err != nil {
		t.Errorf("FreeHandle = %+v, %s, %v; want %+v, free", v, state, err, own)
	}

	if _, err := c.LiveBlock(own.Handle); !errors.Is(err, ErrFreed) {
		t.Errorf("Live of a freed block = %v, want ErrFreed", err)
	}

	if _, _, err := c.FreeHandle(own.Handle); !errors.Is(err, ErrDoubleFree) {
		t.Errorf("second FreeHandle = %v, want ErrDoubleFree", err)
	}

	parked := mustAlloc(t, c, 4096, 0)
	_, _ = c.Pin(parked.Handle)
	if _, state, err := c.FreeHandle(parked.Handle); state != Parked || err != nil {
		t.Errorf("FreeHandle of a pinned block = %s, %v; want parked", state, err)
	}

	if _, _, err := c.FreeHandle(parked.Handle); !errors.Is(err, ErrDoubleFree) {
		t.Errorf("FreeHandle of a parked block = %v, want ErrDoubleFree", err)
	}

	for _, h := range []Handle{0, makeHandle(1000, 0), makeHandle(1, 7)} {
		if _, _, err := c.FreeHandle(h); !errors.Is(err, ErrForeign) {
			t.Errorf("FreeHandle(%#x) = %v, want ErrForeign", h, err)
		}
	}
}

func TestOrdinalsOfTrimmedSegmentsAreNotReused(t *testing.T) {
	c := newCore(t, Default())
	if _, err := c.Free(mustAlloc(t, c, 1, 0)); err != nil {
		t.Fatal(err)
	}

	if gone := c.Trim(0); len(gone) != 1 || gone[0].Ordinal != 0 {
		t.Fatalf("Trim(0) = %+v, want segment 0", gone)
	}

	if v := mustAlloc(t, c, 1, 0); v.Segment != 1 {
		t.Errorf("the block is in segment %d, want 1", v.Segment)
	}

	for v := range c.Blocks(0) {
		t.Errorf("the trimmed segment contains block %+v", v)
	}

	if n := len(slices.Collect(c.Segments())); n != 1 {
		t.Errorf("got %d segments, want 1", n)
	}
}

func TestPoolOfFourGiBHasAtMostEightSegments(t *testing.T) {
	const limit = 8
	for start := int64(2); start <= 48; start++ {
		c := newCore(t, Default())
		for size, held := start, int64(0); held < 4096; size = 2 + (size*7+3)%47 {
			mustAlloc(t, c, size*mib, 0)
			held += size
		}

		if n := c.Stats().Segments; n > limit {
			t.Errorf("first request of %d MiB: got %d segments, want at most %d", start, n, limit)
		}
	}
}

func TestLastSegmentFillsCapacity(t *testing.T) {
	c := newCore(t, Config{Capacity: 100*mib + 12345})
	for range 9 {
		mustAlloc(t, c, 10*mib, 0)
	}

	if s := c.Stats(); s.Mapped != 100*mib || s.Segments != 2 {
		t.Errorf("mapped %d bytes in %d segments, want 100 MiB in 2", s.Mapped, s.Segments)
	}

	if _, _, err := c.Alloc(10*mib, 0); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("Alloc beyond the capacity: got %v, want ErrOutOfMemory", err)
	}

	grow := Growth{Bytes: 2 * mib}
	if _, err := c.AddSegment(grow, 0); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("AddSegment beyond the capacity: got %v, want ErrOutOfMemory", err)
	}
}

func TestAllocOfReservedMemoryDoesNotGrow(t *testing.T) {
	c := newCore(t, Default())
	grow, err := c.Reserve(300*mib, 5)
	if err != nil || grow.Bytes != 300*mib {
		t.Fatalf("Reserve = growth of %d bytes, %v; want 300 MiB", grow.Bytes, err)
	}

	if _, err := c.AddSegment(grow, 0); err != nil {
		t.Fatal(err)
	}

	if grow, _ := c.Reserve(300*mib, 5); grow.Bytes != 0 {
		t.Errorf("the second Reserve grows by %d bytes, want 0", grow.Bytes)
	}

	for i := range int64(24) {
		if _, grow, _ := c.Alloc((i+1)*mib, 5); grow.Bytes != 0 {
			t.Fatalf("request %d grows by %d bytes, want 0", i, grow.Bytes)
		}
	}

	if _, grow, _ := c.Alloc(512, 6); grow.Bytes == 0 {
		t.Error("another stream got reserved memory")
	}
}

func TestOperationsDoNotAllocateInSteadyState(t *testing.T) {
	c, blocks := newUsedCore(t, Default(), 1000)
	next := 0
	step := func(size int64) Block {
		next = (next + 617) % len(blocks)
		_, _ = c.Free(blocks[next])
		blocks[next], _, _ = c.Alloc(size, 1)
		if blocks[next].Size == 0 {
			t.Fatal("the pool grew in steady state")
		}

		return blocks[next]
	}
	for _, row := range []struct {
		name string
		run  func()
	}{
		{"free and alloc", func() { step(4096) }},
		{"uses, deferral and synchronization", func() {
			_ = c.Use(step(8192).Handle, 2)
			_, _ = c.Free(blocks[next])
			c.StreamCompleted(2, c.Mark())
			blocks[next], _, _ = c.Alloc(8192, 1)
		}},
		{"pins", func() {
			v := step(2048)
			_, _ = c.Pin(v.Handle)
			_, _ = c.Free(v)
			_, _, _ = c.Unpin(v.Handle)
			blocks[next], _, _ = c.Alloc(2048, 1)
		}},
		{"stats", func() { c.Stats() }},
	} {
		t.Run(row.name, func(t *testing.T) {
			if n := testing.AllocsPerRun(2000, row.run); n != 0 {
				t.Errorf("got %v allocations per run, want 0", n)
			}
		})
	}

	if err := c.Verify(); err != nil {
		t.Error(err)
	}
}
