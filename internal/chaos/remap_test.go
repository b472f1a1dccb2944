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

// remapTask selects how ranks map new memory at the addresses of their buffers.
type remapTask struct {
	NewPool      bool // replace the pool instead of suspending and resuming it
	SuspendGroup bool // close the pool while the group is suspended
	KeepGraph    bool // close the graph after the pool instead of before
	Count        int64
}

// A capture of a call by NCCL maps the buffers of other ranks. After the buffers get new memory at
// the same addresses, NCCL uses new mappings instead of the old memory.
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

// element returns the value that a rank sends in a round, which is different in every round.
func (r *remapper) element(round int32, rank int) int32 { return round<<16 + int32(rank+1) }

// gather captures and launches an AllGather, and prints how many elements are wrong.
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
	err := errors.Join(launchErr, copyErr, syncErr)
	if !r.task.KeepGraph {
		closeErr := r.graph.Close()
		err = errors.Join(err, closeErr)
	}

	wrong := 0
	for i, got := range all {
		sender := int64(i) / r.task.Count
		if got != r.element(round, int(sender)) {
			wrong++
		}
	}

	if wrong > 0 {
		fmt.Printf("rank %d, round %d: %d of %d elements are wrong\n", r.rt.Rank(), round, wrong,
			len(all))
	}

	return err
}

// initialize sets the contents of the buffers on all ranks.
func (r *remapper) initialize(round int32) error {
	own := slices.Repeat([]int32{r.element(round, r.rt.Rank())}, int(r.task.Count))
	if err := r.stream.Copy(r.send.Memory(), symmem.Host(own)); err != nil {
		return err
	}

	const noElement = 0xff // no element consists of these bytes
	if err := r.stream.Fill(r.recv.Memory(), noElement); err != nil {
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

	// A second Close of the graph returns nil.
	if err := r.graph.Close(); err != nil {
		return err
	}

	return r.openPool() // at the same addresses
}

// closePool frees the buffers and closes the pool.
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
