package netlab

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Link describes the path from one machine to another. The zero value neither delays nor drops
// packets.
type Link struct {
	// MinDelay and MaxDelay bound the random delay of each packet. Packets may be reordered.
	MinDelay, MaxDelay time.Duration
	// Loss is the probability that a packet is dropped.
	Loss float64
	// Cut makes the link drop all packets, without an error for the sender.
	Cut bool
}

// router reads packets from the TUN devices of the machines. After a random delay, it writes a
// packet to the device of the destination.
type router struct {
	tasks  sync.WaitGroup // goroutines and delayed packets
	closed chan struct{}

	mu           sync.Mutex // guards the fields below
	random       *rand.Rand // for delays and losses
	ports        map[netip.Addr]*port
	links        map[[2]int]Link     // by sending and receiving machine
	translations map[int]addressPair // of machines behind NAT
	longestStall time.Duration       // longest delay of a timer
}

// port is the router's end of an interface.
type port struct {
	machine int // index in Lab.Machines
	device  *os.File
	isCut   bool // guarded by router.mu
}

func newRouter(seed uint64) *router {
	r := &router{
		closed:       make(chan struct{}),
		random:       rand.New(rand.NewPCG(seed, 0)),
		ports:        map[netip.Addr]*port{},
		links:        map[[2]int]Link{},
		translations: map[int]addressPair{},
	}
	r.tasks.Go(r.watchStalls)
	return r
}

// close waits for the tasks. The devices of all ports must be closed.
func (r *router) close() {
	close(r.closed)
	r.tasks.Wait()
}

// attachPort makes p the port of an address, and forwards the packets from p.device until the
// device is closed.
func (r *router) attachPort(p *port, address netip.Addr) {
	r.mu.Lock()
	r.ports[address] = p
	r.mu.Unlock()
	r.tasks.Go(func() { r.forwardAll(p) })
}

func (r *router) forwardAll(p *port) {
	const maxPacket = 2048 // bytes, more than the MTU of interfaces
	for {
		packet := make([]byte, maxPacket)
		n, err := p.device.Read(packet) // reads exactly one packet
		if err != nil {
			return
		}

		r.forward(p, packet[:n])
	}
}

// forward drops a packet, or sends it after the link's delay. It does not block, and takes
// ownership of packet.
func (r *router) forward(src *port, packet []byte) {
	dst, delay, isKept := r.routePacket(src, packet)
	if !isKept {
		return
	}

	if delay <= 0 {
		_, _ = dst.device.Write(packet) // fails if the device is down
		return
	}

	r.tasks.Add(1)
	due := time.Now().Add(delay)
	time.AfterFunc(delay, func() {
		defer r.tasks.Done()
		r.recordStall(time.Since(due))
		_, _ = dst.device.Write(packet)
	})
}

// watchStalls records the delays of a ticker until the router is closed.
func (r *router) watchStalls() {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		start := time.Now()
		select {
		case <-ticker.C:
			r.recordStall(time.Since(start) - interval)
		case <-r.closed:
			return
		}
	}
}

func (r *router) recordStall(stall time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.longestStall = max(r.longestStall, stall)
}

// routePacket translates the addresses of a packet, and draws its loss and delay.
func (r *router) routePacket(
	src *port, packet []byte,
) (dst *port, delay time.Duration, isKept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.translate(src.machine, packet)
	dst = r.ports[destinationOf(packet)]
	if dst == nil {
		return nil, 0, false
	}

	link := r.links[[2]int{src.machine, dst.machine}]
	if src.isCut || dst.isCut || link.Cut {
		return nil, 0, false
	}

	isLost := link.Loss > 0 && r.random.Float64() < link.Loss
	if isLost {
		return nil, 0, false
	}

	return dst, r.drawDelay(link), true
}

// drawDelay draws the delay of a packet. The caller must hold r.mu.
func (r *router) drawDelay(link Link) time.Duration {
	delayRange := link.MaxDelay - link.MinDelay
	if delayRange <= 0 {
		return link.MinDelay
	}

	return link.MinDelay + time.Duration(r.random.Int64N(int64(delayRange)))
}

func (r *router) setLink(src, dst int, link Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[[2]int{src, dst}] = link
}
