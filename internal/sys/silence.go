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

// If a machine loses power, its kernel no longer answers packets: the machine is silent. By
// default, a TCP connection to it fails after minutes. The functions in this file reduce this time
// to 5 s:
//
//   - While a connection is idle, this machine's kernel sends a probe, an empty packet, every
//     second. If no probe is answered for 5 s, it ends the connection.
//   - While data that was sent is not acknowledged, the kernel sends no probes, but sends the data
//     again. If the data is not acknowledged within 5 s, it ends the connection.

const (
	// SilenceLimit is the time after which a TCP connection to a silent machine fails.
	SilenceLimit = 5 * time.Second
	// probeInterval is the time between probes. It is also the longest time after which data that was
	// not acknowledged is sent again.
	probeInterval = time.Second
	// tcpRTOMaxMs is the socket option TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15.
	tcpRTOMaxMs = 44
)

// keepAlive makes the kernel send probes, and end the connection after SilenceLimit without an
// answer.
var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     probeInterval,                     // before the first probe
	Interval: probeInterval,                     // before each later probe
	Count:    int(SilenceLimit / probeInterval), // of probes without an answer
}

// Dialer returns a dialer for TCP and Unix sockets. Its TCP connections fail after SilenceLimit
// without an answer of the other machine, as after DetectSilence.
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

// DetectSilence makes a TCP connection fail after SilenceLimit without an answer of the other
// machine. It does not change other connections.
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
		// Older kernels do not have this option, and send the data again less often.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMaxMs, intervalMs)
	})
	// NewSyscallError returns nil if setErr is nil.
	return errors.Join(controlErr, os.NewSyscallError("setsockopt", setErr))
}

// Silence describes whether the machine at the other end of a TCP connection answers.
type Silence int

const (
	// Answering means that the machine has answered recently.
	Answering Silence = iota
	// Suspect means that the machine has not answered a probe yet. The probe or its answer may be
	// lost or late.
	Suspect
	// Silent means that the machine has not answered for almost SilenceLimit.
	Silent
)

// SilenceOf returns whether the machine at the other end of a connection answers. It returns
// Answering if the connection is closed or does not use TCP.
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
		// The first probe is sent after 1 s. Its answer may take 0.5 s.
		suspectAfter = probeInterval + probeInterval/2
		// After 4.5 s, 4 probes have not been answered. After 5 s, the kernel ends the connection.
		silentAfter = SilenceLimit - probeInterval/2
	)
	switch {
	case controlErr != nil || silence < suspectAfter:
		return Answering
	case silence < silentAfter:
		return Suspect
	}

	return Silent
}

// IsSilence reports whether err means that the other machine did not answer.
func IsSilence(err error) bool {
	return errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTDOWN)
}
