import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.antlr.v4.runtime.BaseErrorListener;
import org.antlr.v4.runtime.CharStreams;
import org.antlr.v4.runtime.CommonTokenStream;
import org.antlr.v4.runtime.RecognitionException;
import org.antlr.v4.runtime.Recognizer;
import org.antlr.v4.runtime.Token;
import org.antlr.v4.runtime.atn.PredictionMode;
import org.apache.shardingsphere.sql.parser.autogen.OracleStatementLexer;
import org.apache.shardingsphere.sql.parser.autogen.OracleStatementParser;

/** Reads a statement from each line, a JSON string, and answers with its syntax errors, a JSON list. */
public final class ParseServer {
    private static final int SHOWN = 200;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader statements =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        String line;
        while ((line = statements.readLine()) != null) {
            answers.println(json.writeValueAsString(errors(json.readValue(line, String.class))));
        }
    }

    /** SLL is the faster of ANTLR's two ways; what it refuses is put to the other one. */
    private static List<String> errors(String statement) {
        List<String> found = errors(statement, PredictionMode.SLL);
        return found.isEmpty() ? found : errors(statement, PredictionMode.LL);
    }

    private static List<String> errors(String statement, PredictionMode mode) {
        Errors found = new Errors();
        OracleStatementLexer lexer = new OracleStatementLexer(CharStreams.fromString(statement));
        lexer.removeErrorListeners();
        lexer.addErrorListener(found);
        OracleStatementParser parser = new OracleStatementParser(new CommonTokenStream(lexer));
        parser.removeErrorListeners();
        parser.addErrorListener(found);
        parser.getInterpreter().setPredictionMode(mode);
        parser.execute();
        Token next = parser.getCurrentToken();
        if (next.getType() != Token.EOF) {
            found.texts.add(next.getCharPositionInLine() + ": not read to its end");
        }
        return found.texts;
    }

    private static final class Errors extends BaseErrorListener {
        private final List<String> texts = new ArrayList<>();

        @Override
        public void syntaxError(
                Recognizer<?, ?> recognizer, Object symbol, int line, int column, String message,
                RecognitionException error) {
            String shown = message.substring(0, Math.min(SHOWN, message.length()));
            texts.add(line + ":" + column + ": " + shown);
        }
    }
}
