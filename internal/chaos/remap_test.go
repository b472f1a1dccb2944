package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem"
)

// remapTask selects how new memory is mapped at the addresses that a closed graph used.
type remapTask struct {
	// NewPool makes ranks open a new pool. Otherwise, they suspend and resume the pool.
	NewPool bool
	// SuspendGroup makes ranks close the old pool while the group is suspended.
	SuspendGroup bool
	// KeepGraph makes ranks close the graph after they have closed the old pool.
	KeepGraph bool
	// Count is the number of elements that each rank gathers.
	Count int64
}

// TestRemapOnAGPU captures an AllGather on NCCL's plain path, closes the graph, maps new memory at
// the addresses of its buffers, and captures the AllGather again. During a capture, NCCL maps the
// buffers on other ranks. It must not use these mappings after the graph has been closed.
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
			var lines []string
			j := job{
				role: "remap", ranks: 2, task: task,
				timeLimit: time.Minute, variables: gpuVariables(t, "SOFTGPU_NCCL=23007"),
				onLine: func(line string) { lines = append(lines, line) },
			}
			if _, err := j.run(t.Context()); err != nil {
				t.Error(err)
			}
			for _, line := range lines {
				t.Error(line)
			}
		})
	}
}

// remapper captures, replays and checks AllGathers on one rank.
type remapper struct {
	task       remapTask
	ctx        context.Context
	rt         *symmem.Runtime
	pool       *symmem.Pool
	stream     *symmem.Stream
	send, recv symmem.Buffer
	graph      *symmem.Graph
}

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
	if r.stream, err = r.rt.NewStream(); err == nil {
		err = r.openPool()
	}
	for round := int32(0); round < 4 && err == nil; round++ {
		if err = r.gather(round); err == nil {
			err = r.remap()
		}
	}
	return errors.Join(err, r.rt.Close())
}

func (r *remapper) openPool() (err error) {
	r.pool, err = r.rt.NewPool(symmem.PoolOptions{
		Domain: r.rt.World(), FirstSegment: 2 * r.bytes() * int64(r.rt.Size()),
	})
	if err == nil {
		r.send, err = r.pool.AllocOn(r.stream, r.bytes())
	}
	if err == nil {
		r.recv, err = r.pool.AllocOn(r.stream, r.bytes()*int64(r.rt.Size()))
	}
	return err
}

func (r *remapper) bytes() int64 { return 4 * r.task.Count }

func (r *remapper) gather(round int32) error {
	own := make([]int32, r.task.Count)
	for i := range own {
		own[i] = round<<16 + int32(r.rt.Rank()+1)
	}
	err := errors.Join(r.stream.Copy(r.send.Memory(), symmem.Host(own)),
		r.stream.Fill(r.recv.Memory(), 0xff), r.rt.World().Barrier(r.ctx, r.stream),
		r.stream.Synchronize(r.ctx), r.stream.BeginCapture())
	if err != nil {
		return err
	}
	err = r.rt.World().AllGather(r.ctx, r.send.Memory(), r.recv.Memory(), r.task.Count,
		symmem.Int32, r.stream)
	var endErr error
	r.graph, endErr = r.stream.EndCapture()
	if err = errors.Join(err, endErr); err != nil {
		return err
	}
	all := make([]int32, r.task.Count*int64(r.rt.Size()))
	err = errors.Join(r.graph.Launch(r.stream), r.stream.Copy(symmem.Host(all), r.recv.Memory()),
		r.stream.Synchronize(r.ctx))
	if !r.task.KeepGraph {
		err = errors.Join(err, r.graph.Close())
	}
	wrong := 0
	for i, got := range all {
		if got != round<<16+int32(int64(i)/r.task.Count)+1 {
			wrong++
		}
	}
	if wrong > 0 {
		fmt.Printf("rank %d, round %d: %d of %d elements are wrong\n", r.rt.Rank(), round, wrong,
			len(all))
	}
	return err
}

func (r *remapper) remap() error {
	if !r.task.NewPool {
		_, err := r.pool.Suspend(r.ctx, symmem.DiscardContents)
		return errors.Join(err, r.pool.Resume(r.ctx))
	}
	err := errors.Join(r.send.Free(), r.recv.Free(), r.stream.Synchronize(r.ctx))
	if r.task.SuspendGroup {
		_, suspendErr := r.rt.World().Suspend(r.ctx)
		err = errors.Join(err, suspendErr, r.pool.Close(), r.rt.World().Resume(r.ctx))
	} else {
		err = errors.Join(err, r.pool.Close())
	}
	return errors.Join(err, r.graph.Close(), r.openPool())
}
