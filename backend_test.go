package symmem_test

import (
	"cmp"
	"errors"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"symmem"
	"symmem/driver/nccl"
)

// backendVariable selects the backend of the tests. The default, host, needs no GPU. The
// backend nccl needs one for each rank.
const backendVariable = "SYMMEM_TEST_BACKEND"

func withBackend(o symmem.Options) symmem.Options {
	if o.Backend == "" {
		o.Backend = cmp.Or(os.Getenv(backendVariable), "host")
	}

	return o
}

func isHost() bool { return withBackend(symmem.Options{}).Backend == "host" }

// skipOnHost skips a test that needs the backend nccl. Package internal/softgpu/roottest runs such
// tests on a simulated GPU.
func skipOnHost(tb testing.TB, reason string) {
	tb.Helper()
	if isHost() {
		tb.Skipf("%s: %v", reason, symmem.ErrUnsupported)
	}
}

// availableRanks returns the number of ranks that the backend can run, one for each device. The
// result is at least 2, because openRanks skips a test without enough devices.
func availableRanks(tb testing.TB) int {
	tb.Helper()
	if isHost() {
		return math.MaxInt
	}

	n, err := nccl.Backend{}.LocalRanks()
	if err != nil {
		tb.Fatal(err)
	}

	return max(n, 2)
}

// smallestRefusedSize is the smallest number of ranks for which there were too few devices, or 0.
// openRanks does not try this number again, because the ranks with devices would wait for the rest.
var smallestRefusedSize atomic.Int64

// openRanks skips the test if there are too few devices. The caller must close the Runtimes.
func openRanks(t *testing.T, n int, o symmem.Options) []*symmem.Runtime {
	t.Helper()
	refused := smallestRefusedSize.Load()
	isKnownToFail := refused != 0 && int64(n) >= refused
	if isKnownToFail {
		t.Skipf("the backend has no devices for %d ranks", n)
	}

	runtimes, err := symmem.OpenLocal(t.Context(), n, withBackend(o))
	if errors.Is(err, symmem.ErrUnsupported) {
		smallestRefusedSize.Store(int64(n))
		t.Skipf("the backend has no devices for %d ranks: %v", n, err)
	}

	if err != nil {
		t.Fatal(err)
	}

	return runtimes
}

func requireRanks(t *testing.T, ranks int) {
	t.Helper()
	doNothing := func(*rank) {}
	runRanks(t, ranks, symmem.Options{}, doNothing) // skips the test if there are too few devices
}

// openAlone opens a world of one rank, which closes at the end of the test.
func openAlone(tb testing.TB) *symmem.Runtime {
	tb.Helper()
	return openAloneWith(tb, symmem.Options{})
}

func openAloneWith(tb testing.TB, o symmem.Options) *symmem.Runtime {
	tb.Helper()
	o.Size = 1
	rt, err := symmem.Open(tb.Context(), withBackend(o))
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(func() {
		symmem.FreeLive(rt)
		if err := rt.Close(); err != nil {
			tb.Error(err)
		}
	})
	return rt
}

func (r *rank) requireAddressable() {
	if !r.Device().Addressable {
		r.skip("the CPU cannot address device memory", symmem.ErrUnsupported)
	}
}

func (r *rank) skipUnsupported(err error) {
	r.t.Helper()
	if errors.Is(err, symmem.ErrUnsupported) {
		r.skip("not supported by the backend", err)
	}

	r.ok(err)
}

// lacksWindowPath reports whether a collective uses the plain path because the window path is not
// supported.
func lacksWindowPath(e symmem.Explanation) bool {
	return e.Path == "plain" && strings.HasSuffix(e.Why, symmem.ErrUnsupported.Error())
}
