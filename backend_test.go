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

// backendVariable names the backend on which the tests run. Nothing else decides: every world of a
// test is opened with the options that on returns.
const backendVariable = "SYMMEM_TEST_BACKEND"

// on gives options the backend of the tests.
func withBackend(o symmem.Options) symmem.Options {
	if o.Backend == "" {
		o.Backend = cmp.Or(os.Getenv(backendVariable), "host")
	}
	return o
}

// localRanks is how many ranks the backend has devices for, and 2 if for less: a world of them is
// skipped then. The host has as many as anyone wants.
func localRanks(tb testing.TB) int {
	tb.Helper()
	if withBackend(symmem.Options{}).Backend == "host" {
		return math.MaxInt
	}
	n, err := nccl.Backend{}.LocalRanks()
	if err != nil {
		tb.Fatal(err)
	}
	return max(2, n)
}

// refusedRanks is the smallest local world that the backend has refused; 0 means none so far.
// Asking again would take as long as the other ranks wait for the one without a device.
var refusedRanks atomic.Int64

// open opens a world of goroutines. A test that needs more ranks than the backend has devices for
// is skipped.
func openRanks(t *testing.T, n int, o symmem.Options) []*symmem.Runtime {
	t.Helper()
	if least := refusedRanks.Load(); least != 0 && int64(n) >= least {
		t.Skipf("the backend has no devices for %d ranks", n)
	}
	runtimes, err := symmem.OpenLocal(t.Context(), n, withBackend(o))
	if errors.Is(err, symmem.ErrUnsupported) {
		refusedRanks.Store(int64(n))
		t.Skipf("the backend has no devices for %d ranks: %v", n, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return runtimes
}

// needs skips a test that opens its worlds itself where there are too few devices for its ranks.
func needRanks(t *testing.T, ranks int) {
	t.Helper()
	runRanks(t, ranks, symmem.Options{}, func(*rank) {})
}

// alone opens a world of one rank, which every backend has a device for.
func openAlone(tb testing.TB) *symmem.Runtime {
	tb.Helper()
	return openAloneWith(tb, symmem.Options{})
}

// aloneWith is alone with options.
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

// needsAddressable ends the rank, and skips the test, where the processor cannot read and write
// device memory: there Go slices are no memory for collectives.
func (r *rank) requireAddressable() {
	if !r.Device().Addressable {
		r.skip("the processor cannot address device memory", symmem.ErrUnsupported)
	}
}

// supported ends the rank, and skips the test, if an error says that the backend cannot do
// something. Any other error fails the test.
func (r *rank) skipUnsupported(err error) {
	r.t.Helper()
	if errors.Is(err, symmem.ErrUnsupported) {
		r.skip("the backend cannot do this", err)
	}
	r.ok(err)
}

// refuses reports whether an explanation says that the backend cannot take the window path for a
// call whose buffers lie in windows.
func lacksWindowPath(e symmem.Explanation) bool {
	return e.Path == "plain" && strings.HasSuffix(e.Why, symmem.ErrUnsupported.Error())
}
