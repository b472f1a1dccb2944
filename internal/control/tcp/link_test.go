package tcp

import (
	"sync"
	"testing"
)

// TestAnswersCarryTheirRequest answers requests while another goroutine takes the queue, as the
// writer does after any frame. Every request must be answered, because the other rank waits for a
// status with its number.
func TestAnswersCarryTheirRequest(t *testing.T) {
	const lastRequest = 20_000
	l := newLink(1, nil)
	answered := make(chan uint64, 1)
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		encodeStatus := func(request uint64) []byte {
			answered <- request
			return nil
		}
		for {
			select {
			case <-stop:
				return
			default:
				l.takeQueue(encodeStatus)
			}
		}
	})
	for request := uint64(1); request <= lastRequest; request++ {
		l.answer(request)
		got := <-answered
		if got != request {
			t.Errorf("the status answers request %d, want %d", got, request)
			break
		}
	}

	close(stop)
	writer.Wait()
}
