package agreement

import "symmem/event"

func encodeOptionalCall(c *event.Call) []byte {
	if c == nil {
		return nil
	}

	return event.AppendCall(nil, c)
}

const noCall = "no collective"

func (n Names) describeCall(value []byte) (string, error) {
	if len(value) == 0 {
		return noCall, nil
	}

	c, err := event.DecodeCall(value)
	if err != nil {
		return "", protocolError("%w", err)
	}

	return string(c.AppendText(nil, n.event())), nil
}
