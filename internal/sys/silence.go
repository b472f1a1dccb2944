package sys

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// By default, a TCP connection fails only minutes after the other machine has lost power. The
// functions in this file reduce this time to 5 s:
//
//   - Keep-alive probes end an idle connection.
//   - TCP_USER_TIMEOUT ends a connection with unacknowledged data, on which the kernel sends no
//     probes.

const (
	// SilenceLimit is the time after which a TCP connection to a silent machine fails.
	SilenceLimit = 5 * time.Second
	// probeInterval is the time between probes, and the longest time between retransmissions.
	probeInterval = time.Second
	// tcpRTOMaxMs is the socket option TCP_RTO_MAX_MS of Linux 6.15 and later.
	tcpRTOMaxMs = 44
)

var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     probeInterval,                     // before the first probe
	Interval: probeInterval,                     // before each later probe
	Count:    int(SilenceLimit / probeInterval), // unanswered probes that end the connection
}

// Dialer returns a dialer for TCP and Unix sockets. The TCP connections that it opens fail after
// SilenceLimit without an answer from the other machine.
func Dialer() *net.Dialer {
	control := func(network, _ string, conn syscall.RawConn) error {
		isTCP := strings.HasPrefix(network, "tcp") // such as "tcp4"
		if !isTCP {
			return nil
		}

		return limitSilence(conn)
	}
	return &net.Dialer{KeepAliveConfig: keepAlive, Control: control}
}

// DetectSilence makes a TCP connection fail after SilenceLimit without an answer from the other
// machine. It ignores other types of connections.
func DetectSilence(conn net.Conn) error {
	tcpConn, isTCP := conn.(*net.TCPConn)
	if !isTCP {
		return nil
	}

	if err := tcpConn.SetKeepAliveConfig(keepAlive); err != nil {
		return err
	}

	rawConn, err := tcpConn.SyscallConn()
	if err != nil {
		return err
	}

	return limitSilence(rawConn)
}

// limitSilence makes a connection fail if sent data is not acknowledged within SilenceLimit.
func limitSilence(conn syscall.RawConn) error {
	limitMs := int(SilenceLimit / time.Millisecond)
	intervalMs := int(probeInterval / time.Millisecond)
	var setErr error
	controlErr := conn.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, limitMs)
		// Kernels without this option retransmit less often, which is acceptable.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMaxMs, intervalMs)
	})
	return errors.Join(controlErr, os.NewSyscallError("setsockopt", setErr))
}

// Silence describes whether the machine at the other end of a TCP connection answers.
type Silence int

// States of the other machine.
const (
	Answering Silence = iota // The machine has answered recently.
	Suspect                  // The answer to the last probe is late.
	Silent                   // The last answer came almost SilenceLimit ago.
)

// SilenceOf returns the state of the machine at the other end of a connection. It returns Answering
// if the connection is closed or does not use TCP.
func SilenceOf(conn net.Conn) Silence {
	tcpConn, isTCP := conn.(*net.TCPConn)
	if !isTCP {
		return Answering
	}

	rawConn, err := tcpConn.SyscallConn()
	if err != nil {
		return Answering
	}

	var silence time.Duration // since the last answer; 0 if it cannot be read
	controlErr := rawConn.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			silence = time.Duration(info.Last_ack_recv) * time.Millisecond
		}
	})
	const (
		maxRoundTrip = probeInterval / 2
		suspectAfter = probeInterval + maxRoundTrip // The first probe should have been answered.
		silentAfter  = SilenceLimit - maxRoundTrip  // shortly before the connection fails
	)
	switch {
	case controlErr != nil || silence < suspectAfter:
		return Answering
	case silence < silentAfter:
		return Suspect
	default:
		return Silent
	}
}

// IsSilence reports whether err means that the other machine did not answer.
func IsSilence(err error) bool {
	return errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTDOWN)
}
