package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// readJSON reads one JSON value and pushes it. It returns an error if anything but white space
// follows the value.
func (m *machine) readJSON(in *input) error {
	decoder := json.NewDecoder(in.r)
	decoder.UseNumber()
	isComplete := false
	for !isComplete {
		token, err := decoder.Token()
		if err != nil {
			return jsonError(err, decoder.InputOffset())
		}

		if err := m.addJSONToken(token); err != nil {
			return err
		}

		isComplete = len(m.marks) == 0 // every open array and object has a mark
	}

	_, err := decoder.Token()
	isText := err == nil || errors.As(err, new(*json.SyntaxError)) ||
		errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case isText:
		return formatError("it goes on after its end at byte %d", decoder.InputOffset())
	default:
		return jsonError(err, decoder.InputOffset())
	}
}

// jsonError converts an error of the JSON decoder at an offset to an error for the user.
func jsonError(err error, offset int64) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return formatError("it is cut off after %d bytes", offset)
	}

	var syntaxError *json.SyntaxError
	if errors.As(err, &syntaxError) {
		return formatError("it is neither JSON nor a pickle of protocol 2 to 5: byte %d: %v",
			syntaxError.Offset, err)
	}

	return fmt.Errorf("reading JSON: %w", err)
}

// addJSONToken pushes the value of a token, or executes the operation of a delimiter. A number
// that is not an int64 becomes a float. A number that is too large for a float is unsupported.
func (m *machine) addJSONToken(token json.Token) error {
	switch t := token.(type) {
	case json.Delim:
		return m.addJSONDelimiter(t)
	case string: // a value or the key of an object
		v, err := m.doc.findOrAddString([]byte(t))
		if err != nil {
			return err
		}

		return m.push(v)
	case json.Number:
		if n, err := strconv.ParseInt(string(t), 10, 64); err == nil {
			return m.push(intValue(n))
		}

		f, err := t.Float64()
		if err != nil {
			return m.push(makeValue(tagUnsupported, 0))
		}

		return m.push(floatValue(f))
	case bool:
		return m.push(boolValue(t))
	}

	const none = Value(0)
	return m.push(none) // for null
}

// addJSONDelimiter begins or ends an object or an array. At the beginning, it pushes a dict or list
// and adds a mark. At the end, it moves the values above the mark into the dict or list.
func (m *machine) addJSONDelimiter(d json.Delim) error {
	switch d {
	case '{':
		if err := m.pushDict(); err != nil {
			return err
		}

		return m.addMark()
	case '[':
		if err := m.pushList(); err != nil {
			return err
		}

		return m.addMark()
	case '}':
		return m.appendToDict()
	default: // ']'
		return m.appendToList()
	}
}
