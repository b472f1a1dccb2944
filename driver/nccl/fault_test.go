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

// failures lists failures of one of two ranks in a process. For example, "f:2" makes the second
// call of function f in the process fail.
var failures = []struct {
	name     string
	failure  string // for SOFTGPU_FAIL
	wantText string // in the errors of both ranks
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

// wantTextVariable passes the wantText of a failure to a child process.
const wantTextVariable = "SYMMEM_TEST_WANT_TEXT"

// If one rank fails, both ranks report the reason before the timeout. Each case runs in a child
// process, because the software GPU reads SOFTGPU_FAIL only once.
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

// requireSoftGPU skips the test on a real GPU. It logs "only the software GPU" and the predicate.
func requireSoftGPU(t *testing.T, predicate string) {
	t.Helper()
	if !usesSoftGPU(t) {
		t.Skip(fmt.Errorf("only the software GPU %s: %w", predicate, driver.ErrUnsupported))
	}
}

func usesSoftGPU(t *testing.T) bool {
	t.Helper()
	name, err := modelName()
	if err != nil {
		t.Fatal(err)
	}

	return isSoft(name)
}

// checkBothRanksFail opens two ranks and checks that both get an error that contains wantText.
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

// joinReports joins err with the errors of both ranks, or returns err if rank r has no group.
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

// A call that completed before an abort stays successful, even if its group has not noticed that
// the call has ended.
func TestFinishedStreamHasNoFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	runBoth(t, func(r int) error {
		const anyValue = 1
		_, err := p.sum(t.Context(), r, driver.PathPlain, anyValue)
		return err
	})
	c := p[0].group.(*communicator)
	s := p[0].stream.(*stream.Stream)
	c.mu.Lock()
	c.busy.Add(s) // s is idle
	c.Abort(errAborted)
	c.mu.Unlock()
	if err := s.Synchronize(t.Context()); err != nil {
		t.Errorf("Synchronize = %v, want nil", err)
	}

	p.closeAll(t)
}

// The group fails if a collective ends before all ranks have launched it.
func TestCollectiveThatEndsEarlyIsAFault(t *testing.T) {
	p := openPair(t, 20*time.Second)
	c := p[0].group.(*communicator)
	s := p[0].stream.(*stream.Stream)
	prepared, err := prepare(c, p.call(0, driver.PathPlain))
	if err != nil {
		t.Fatal(err)
	}

	// Record a launch without launching. The idle stream looks as if the collective had ended.
	s.Mu.Lock()
	c.mu.Lock()
	ticket := c.plane.Submit()
	c.recordLaunch(s, prepared.(*plan), ticket)
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
