package nccl

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/sys/systest"
)

// A fault is the failure of a group. If one rank fails, the ranks exchange their errors on the lane
// driver.LaneFault, so that both ranks learn the reason.

// failures lists CUDA and NCCL functions that fail on one of two ranks: ":2" makes the second call
// fail, which follows that of the other rank. Each case runs in a separate process, because the
// software GPU reads SOFTGPU_FAIL only once.
var failures = []struct {
	name     string
	failure  string // value of SOFTGPU_FAIL
	wantText string // must be in the error of both ranks
}{
	{
		name:     "no GPU",
		failure:  "cuDevicePrimaryCtxRetain:2",
		wantText: "cuDevicePrimaryCtxRetain",
	},
	{
		name:     "no communicator",
		failure:  "ncclCommInitRankScalable:2",
		wantText: "ncclCommInitRankScalable",
	},
	{
		name:     "no memory for messages",
		failure:  "cuMemHostRegister_v2:2",
		wantText: "cuMemHostRegister",
	},
	{
		name:     "no window",
		failure:  "ncclCommWindowRegister:2",
		wantText: "ncclCommWindowRegister",
	},
}

// wantTextVariable is an environment variable with the wantText of a failure. It is set in child
// processes of TestOneRankFails.
const wantTextVariable = "SYMMEM_TEST_FAILING"

// TestOneRankFails makes a CUDA or NCCL call fail on one rank. Both ranks must report the reason
// without waiting for a timeout. The test starts itself again in a child process for each case.
func TestOneRankFails(t *testing.T) {
	if wantText := os.Getenv(wantTextVariable); wantText != "" {
		checkBothRanksFail(t, wantText)
		return
	}

	requireSoftGPU(t, "can inject failures")
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			c := systest.Command(t, systest.Patience, os.Args[0],
				"-test.run=^TestOneRankFails$", "-test.timeout=1m")
			c.Env = append(os.Environ(), wantTextVariable+"="+f.wantText, "SOFTGPU_FAIL="+f.failure)
			if output, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}

// requireSoftGPU skips the test on a real GPU. The reason is "only the software GPU", followed by
// predicate.
func requireSoftGPU(t *testing.T, predicate string) {
	t.Helper()
	if !usesSoftGPU(t) {
		t.Skip(fmt.Errorf("only the software GPU %s: %w", predicate, driver.ErrUnsupported))
	}
}

// usesSoftGPU reports whether the tests run on a software simulation of GPUs.
func usesSoftGPU(t *testing.T) bool {
	t.Helper()
	name, err := modelName()
	if err != nil {
		t.Fatal(err)
	}

	return isSoft(name)
}

// checkBothRanksFail opens two ranks, which must fail. The error of each rank, or the errors that
// the ranks exchange, must contain wantText.
func checkBothRanksFail(t *testing.T, wantText string) {
	t.Helper()
	p := newPair()
	store := &drivertest.Store{}
	var errs [2]error // by rank
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			err := p.openOne(t, r, store, 10*time.Second)
			if err != nil {
				err = p.joinReports(t, r, err)
			}

			errs[r] = err
		})
	}

	all.Wait()
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), wantText) {
			t.Errorf("rank %d: got %v, want an error that contains %q", r, err, wantText)
		}

		if errors.As(err, new(*driver.TimeoutError)) {
			t.Errorf("rank %d: got %v, want no TimeoutError", r, err)
		}
	}
}

// joinReports exchanges the errors of the ranks and returns them, joined with err. It returns err
// if rank r has no group.
func (p *pairOfRanks) joinReports(t *testing.T, r int, err error) error {
	if p[r].group == nil {
		return err
	}

	reports, exchangeErr := p[r].group.Exchange(t.Context(), driver.LaneFault, []byte(err.Error()))
	for _, text := range reports {
		err = errors.Join(err, errors.New(string(text)))
	}

	return errors.Join(err, exchangeErr)
}

// TestFinishedStreamHasNoFault aborts a group after its call has completed. Synchronize must return
// no fault, even if the group's watcher (a goroutine) has not yet noticed that the stream is idle.
func TestFinishedStreamHasNoFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	runBoth(t, func(r int) error {
		const value = 1 // any input
		_, err := p.sum(t.Context(), r, driver.PathPlain, value)
		return err
	})
	c := p[0].group.(*communicator)
	s := p[0].stream.(*stream.Stream)
	c.mu.Lock()
	c.busy.Add(s) // as if the watcher had not removed the stream
	c.Abort(errAborted)
	c.mu.Unlock()
	if err := s.Synchronize(t.Context()); err != nil {
		t.Errorf("Synchronize = %v, want nil", err)
	}

	p.closeAll(t)
}

// TestCollectiveThatEndsEarlyIsAFault checks that the group fails if a collective ends before all
// ranks have launched it.
func TestCollectiveThatEndsEarlyIsAFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	c := p[0].group.(*communicator)
	s := p[0].stream.(*stream.Stream)
	prepared, err := prepare(c, p.call(0, driver.PathPlain))
	if err != nil {
		t.Fatal(err)
	}

	// Record a launch without launching, so that the stream is idle as if the collective had ended.
	// Rank 1 does not launch it.
	s.Mu.Lock()
	c.mu.Lock()
	c.recordLaunch(s, prepared.(*plan), c.plane.Submit())
	c.mu.Unlock()
	s.Mu.Unlock()
	err = s.Synchronize(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ended before") {
		t.Errorf("Synchronize = %v, want an error about a collective that ended early", err)
	}

	if c.Cause() == nil {
		t.Error("Cause = nil, want a failure of the group")
	}

	_ = p[1].stream.Synchronize(t.Context()) // may return the fault
	p.closeAll(t)
}
