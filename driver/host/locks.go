package host

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	graphMu    struct{}
	streamMu   struct{}
	recvPipeMu struct{}
	sendPipeMu struct{}
	segmentMu  struct{}
	eventMu    struct{}
	leftMu     struct{}
)

// Rank is the place of graph.mu.
func (graphMu) Rank() ranked.Rank { return ranked.Host.Waiting(1, "host.graph.mu") }

// Rank is the place of stream.mu.
func (streamMu) Rank() ranked.Rank { return ranked.Host.Waiting(2, "host.stream.mu") }

// Rank is the place of recvPipe.mu.
func (recvPipeMu) Rank() ranked.Rank { return ranked.Host.At(3, "host.recvPipe.mu") }

// Rank is the place of sendPipe.mu.
func (sendPipeMu) Rank() ranked.Rank { return ranked.Host.At(4, "host.sendPipe.mu") }

// Rank is the place of segment.mu.
func (segmentMu) Rank() ranked.Rank { return ranked.Host.At(5, "host.segment.mu") }

// Rank is the place of event.mu.
func (eventMu) Rank() ranked.Rank { return ranked.Host.At(6, "host.event.mu") }

// Rank is the place of leftWork.mu.
func (leftMu) Rank() ranked.Rank { return ranked.Host.At(7, "host.leftWork.mu") }
