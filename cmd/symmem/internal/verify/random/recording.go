package random

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// recording is a captured graph of calls, which copies the result of each call to a buffer for
// copies. The buffers of the calls may be freed while the graph exists, to check that the pool
// does not reuse their memory until the graph is closed.
type recording struct {
	graph graph
	// capturedByLibrary is set if environment.library captured the graph. The graph must then be
	// launched on the library's streams, and its buffers must not be freed before it is closed,
	// because pools do not know that it uses them.
	capturedByLibrary bool
	group             int // index of the group
	calls             []*testCall
	resultCopies      []symmem.Buffer // resultCopies[i] receives the result of calls[i]
	liveBuffers       []symmem.Buffer // buffers of the calls that have not been freed
}

// graph is a *symmem.Graph or a *program.LibraryGraph.
type graph interface {
	Launch(s *symmem.Stream) error
	Close() error
}

// addCall adds a call, allocates its buffers from p with the given size, and queues the input on
// s.
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
	rec.calls = append(rec.calls, call)
	rec.resultCopies = append(rec.resultCopies, buffers[2])
	rec.liveBuffers = append(rec.liveBuffers, buffers[0], buffers[1])
	return call.Fill(call.inputStream)
}

func (rec *recording) capture(ctx context.Context, s *symmem.Stream) (graph, error) {
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	queueErr := rec.queueCalls(ctx, s)
	g, endErr := s.EndCapture() // even after an error, so that the stream can be used again
	if err := errors.Join(queueErr, endErr); err != nil {
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

// queueCall queues a call and the copy of its result to resultCopy.
func (rec *recording) queueCall(
	ctx context.Context, call *testCall, resultCopy symmem.Buffer, s *symmem.Stream,
) error {
	dst, err := resultCopy.Memory().Slice(0, call.Recv.Bytes())
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

// useBuffers overwrites the output of a call, and copies up to one byte of its input to dst. Ranks
// outside the group, which do not make the call, thus use the same buffers in the same order.
func (call *testCall) useBuffers(dst symmem.Memory, s *symmem.Stream) error {
	n := min(1, call.Send.Bytes(), dst.Bytes()) // 0 if this rank does not send or receive
	src, srcErr := call.Send.Slice(0, n)
	dst, dstErr := dst.Slice(0, n)
	if err := errors.Join(srcErr, dstErr); err != nil {
		return err
	}
	return errors.Join(s.Fill(call.Recv, workload.Junk), s.Copy(dst, src))
}

// overwriteResults overwrites the results of earlier launches. It does not use workload.Junk, with
// which the graph overwrites the outputs.
func (rec *recording) overwriteResults(s *symmem.Stream) error {
	var errs []error
	for _, b := range rec.resultCopies {
		errs = append(errs, s.Fill(b.Memory(), ^byte(workload.Junk)))
	}
	return errors.Join(errs...)
}

// readResults queues copies of the results to the Got fields of the calls.
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
