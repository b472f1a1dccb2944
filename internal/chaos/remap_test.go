package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"symmem"
)

// remapTask selects how ranks replace the memory of their buffers by new memory at the same
// addresses. By default, they suspend and resume the pool.
type remapTask struct {
	NewPool      bool  // close the pool and open another one instead
	SuspendGroup bool  // close the pool while the group is suspended
	KeepGraph    bool  // close the graph after the pool instead of before
	Count        int64 // number of elements that each rank sends
}

// NCCL maps the buffers of other ranks when it captures a call. In a call that is captured after
// the buffers have got new memory, NCCL does not access the old memory.
func TestRemapOnAGPU(t *testing.T) {
	skipSlow(t)
	for name, task := range map[string]remapTask{
		"suspended pool":  {},
		"new pool":        {NewPool: true},
		"suspended group": {NewPool: true, SuspendGroup: true},
		"open graph":      {NewPool: true, KeepGraph: true},
	} {
		t.Run(name, func(t *testing.T) {
			task.Count = 8 << 20
			var failures []string
			j := job{
				role: "remap", ranks: 2, task: task,
				timeLimit: time.Minute,
				variables: gpuVariables(t, "SOFTGPU_NCCL=23007"), // simulate NCCL 2.30.7
				onLine:    func(line string) { failures = append(failures, line) },
			}
			if _, err := j.run(t.Context()); err != nil {
				t.Error(err)
			}

			for _, failure := range failures {
				t.Error(failure)
			}
		})
	}
}

// remapper performs a remapTask on one rank.
type remapper struct {
	task       remapTask
	ctx        context.Context
	rt         *symmem.Runtime
	pool       *symmem.Pool
	stream     *symmem.Stream
	send, recv symmem.Buffer
	graph      *symmem.Graph
}

// remapRankMain prints a line for each round in which this rank received wrong elements.
func remapRankMain(text []byte) error {
	r := &remapper{ctx: context.Background()}
	err := json.Unmarshal(text, &r.task)
	if err != nil {
		return err
	}

	r.rt, err = symmem.Open(r.ctx, symmem.Options{Backend: "nccl", Path: symmem.PathPlain})
	if err != nil {
		return err
	}

	runErr := r.run()
	closeErr := r.rt.Close()
	return errors.Join(runErr, closeErr)
}

func (r *remapper) run() (err error) {
	if r.stream, err = r.rt.NewStream(); err != nil {
		return err
	}

	if err := r.openPool(); err != nil {
		return err
	}

	const rounds = 4
	for round := range int32(rounds) {
		if err := r.gather(round); err != nil {
			return err
		}

		if err := r.remap(); err != nil {
			return err
		}
	}

	return nil
}

// openPool opens a pool and allocates the buffers.
func (r *remapper) openPool() (err error) {
	const int32Bytes = 4
	sendBytes := int32Bytes * r.task.Count
	recvBytes := sendBytes * int64(r.rt.Size())
	r.pool, err = r.rt.NewPool(symmem.PoolOptions{
		Domain: r.rt.World(), FirstSegment: 2 * recvBytes, // contains both buffers
	})
	if err != nil {
		return err
	}

	if r.send, err = r.pool.AllocOn(r.stream, sendBytes); err != nil {
		return err
	}

	r.recv, err = r.pool.AllocOn(r.stream, recvBytes)
	return err
}

// remapElement returns the value that a rank sends in a round.
func remapElement(round int32, rank int) int32 { return round<<16 + int32(rank+1) }

func (r *remapper) gather(round int32) error {
	if err := r.initialize(round); err != nil {
		return err
	}

	if err := r.capture(); err != nil {
		return err
	}

	all := make([]int32, r.task.Count*int64(r.rt.Size()))
	launchErr := r.graph.Launch(r.stream)
	copyErr := r.stream.Copy(symmem.Host(all), r.recv.Memory())
	syncErr := r.stream.Synchronize(r.ctx)
	var closeErr error
	if !r.task.KeepGraph {
		closeErr = r.graph.Close()
	}

	r.check(round, all)
	return errors.Join(launchErr, copyErr, syncErr, closeErr)
}

// check prints how many elements are wrong, if any.
func (r *remapper) check(round int32, all []int32) {
	wrong := 0
	for i, got := range all {
		sender := int64(i) / r.task.Count
		if got != remapElement(round, int(sender)) {
			wrong++
		}
	}

	if wrong > 0 {
		fmt.Printf("rank %d, round %d: %d of %d elements are wrong\n", r.rt.Rank(), round, wrong,
			len(all))
	}
}

// initialize sets the contents of the buffers and waits for the other ranks.
func (r *remapper) initialize(round int32) error {
	own := slices.Repeat([]int32{remapElement(round, r.rt.Rank())}, int(r.task.Count))
	if err := r.stream.Copy(r.send.Memory(), symmem.Host(own)); err != nil {
		return err
	}

	const fillByte = 0xff // no element consists of these bytes
	if err := r.stream.Fill(r.recv.Memory(), fillByte); err != nil {
		return err
	}

	if err := r.rt.World().Barrier(r.ctx, r.stream); err != nil {
		return err
	}

	return r.stream.Synchronize(r.ctx)
}

func (r *remapper) capture() error {
	if err := r.stream.BeginCapture(); err != nil {
		return err
	}

	gatherErr := r.rt.World().AllGather(r.ctx, r.send.Memory(), r.recv.Memory(), r.task.Count,
		symmem.Int32, r.stream)
	var endErr error
	r.graph, endErr = r.stream.EndCapture()
	return errors.Join(gatherErr, endErr)
}

func (r *remapper) remap() error {
	if !r.task.NewPool {
		_, suspendErr := r.pool.Suspend(r.ctx, symmem.DiscardContents)
		resumeErr := r.pool.Resume(r.ctx)
		return errors.Join(suspendErr, resumeErr)
	}

	if err := r.closePool(); err != nil {
		return err
	}

	if err := r.graph.Close(); err != nil { // has no effect unless KeepGraph is set
		return err
	}

	return r.openPool()
}

// closePool frees the buffers and closes the pool. If SuspendGroup is set, it suspends the group
// meanwhile.
func (r *remapper) closePool() error {
	if err := r.send.Free(); err != nil {
		return err
	}

	if err := r.recv.Free(); err != nil {
		return err
	}

	if err := r.stream.Synchronize(r.ctx); err != nil {
		return err
	}

	if !r.task.SuspendGroup {
		return r.pool.Close()
	}

	if _, err := r.rt.World().Suspend(r.ctx); err != nil {
		return err
	}

	poolErr := r.pool.Close()
	resumeErr := r.rt.World().Resume(r.ctx)
	return errors.Join(poolErr, resumeErr)
}
