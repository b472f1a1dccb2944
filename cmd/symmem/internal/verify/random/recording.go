package random

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// recording is a captured graph of calls that copies each result to another buffer. The calls'
// buffers can be freed earlier, but the pool must not reuse their memory until the graph is closed.
type recording struct {
	graph graph
	// capturedByLibrary is set if another library captured the graph, which is then launched on that
	// library's streams. Pools can reuse the memory of freed buffers at once.
	capturedByLibrary bool
	group             int // index of the group
	calls             []*testCall
	resultCopies      []symmem.Buffer
	liveBuffers       []symmem.Buffer // buffers of the calls that have not been freed
}

type graph interface {
	Launch(s *symmem.Stream) error
	Close() error
}

func (rec *recording) addCall(
	call *testCall, s *symmem.Stream, p *symmem.Pool, bytes int64,
) error {
	var buffers [3]symmem.Buffer
	for i := range buffers {
		var err error
		if buffers[i], err = p.AllocOn(s, bytes); err != nil {
			return err
		}
	}
	if err := call.Place(buffers[0].Memory(), buffers[1].Memory()); err != nil {
		return err
	}
	call.inputStream, call.stream = s, s
	rec.calls, rec.resultCopies = append(rec.calls, call), append(rec.resultCopies, buffers[2])
	rec.liveBuffers = append(rec.liveBuffers, buffers[0], buffers[1])
	return call.Fill(call.inputStream)
}

func (rec *recording) capture(ctx context.Context, s *symmem.Stream) (graph, error) {
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	queueErr := rec.queueCalls(ctx, s)
	g, err := s.EndCapture()
	if err := errors.Join(queueErr, err); err != nil {
		return nil, err
	}
	return g, nil
}

func (rec *recording) queueCalls(ctx context.Context, s *symmem.Stream) error {
	for i, call := range rec.calls {
		if err := rec.queueCall(ctx, call, rec.resultCopies[i], s); err != nil {
			return err
		}
	}
	return nil
}

func (rec *recording) queueCall(
	ctx context.Context, call *testCall, out symmem.Buffer, s *symmem.Stream,
) error {
	dst, err := out.Memory().Slice(0, call.Recv.Bytes())
	if err != nil {
		return err
	}
	if err := call.useBuffers(dst, s); err != nil {
		return err
	}
	if err := call.launch(ctx); err != nil {
		return fmt.Errorf("%v: %w", call.describe(), err)
	}
	return s.Copy(dst, call.Recv)
}

// useBuffers is called even outside the group, so that all ranks use the same buffers in the same
// order.
func (call *testCall) useBuffers(dst symmem.Memory, s *symmem.Stream) error {
	n := min(1, call.Send.Bytes(), dst.Bytes()) // 0 for calls that use only one buffer
	src, srcErr := call.Send.Slice(0, n)
	dst, dstErr := dst.Slice(0, n)
	if err := errors.Join(srcErr, dstErr); err != nil {
		return err
	}
	return errors.Join(s.Fill(call.Recv, workload.Junk), s.Copy(dst, src))
}

func (rec *recording) overwriteResults(s *symmem.Stream) error {
	var errs []error
	for _, out := range rec.resultCopies {
		errs = append(errs, s.Fill(out.Memory(), ^byte(workload.Junk)))
	}
	return errors.Join(errs...)
}

func (rec *recording) readResults(s *symmem.Stream) error {
	for i, call := range rec.calls {
		src, err := rec.resultCopies[i].Memory().Slice(0, call.Recv.Bytes())
		if err != nil {
			return err
		}
		call.Got = make([]byte, src.Bytes())
		if err := s.Copy(symmem.Host(call.Got), src); err != nil {
			return err
		}
	}
	return nil
}

func (rec *recording) close() error {
	errs := []error{rec.graph.Close()}
	for _, b := range append(rec.resultCopies, rec.liveBuffers...) {
		errs = append(errs, b.Free())
	}
	return errors.Join(errs...)
}
