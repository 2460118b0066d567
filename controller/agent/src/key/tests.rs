use super::*;

const SECRET: [u8; 32] = [7; 32];

/// Lets the two ends talk until one of them refuses the other or both are done.
fn shake_hands(mut agent: ServerConnection, mut launcher: ClientConnection) -> (Result<(), Error>, Result<(), Error>) {
    let (mut at_agent, mut at_launcher) = (Ok(()), Ok(()));
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while launcher.wants_write() {
            launcher.write_tls(&mut bytes).unwrap();
        }
        agent.read_tls(&mut &bytes[..]).unwrap();
        at_agent = at_agent.and(agent.process_new_packets().map(drop));
        let mut bytes = Vec::new();
        while agent.wants_write() {
            agent.write_tls(&mut bytes).unwrap();
        }
        launcher.read_tls(&mut &bytes[..]).unwrap();
        at_launcher = at_launcher.and(launcher.process_new_packets().map(drop));
    }
    if at_agent.is_ok() && at_launcher.is_ok() {
        assert!(!agent.is_handshaking() && !launcher.is_handshaking());
    }
    (at_agent, at_launcher)
}

fn refused() -> Result<(), Error> {
    Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
}

// SEMANTICS: J8
#[test]
fn ends_of_one_key_accept_each_other() {
    let (agent, launcher) = (Key::new(&SECRET).unwrap(), Key::new(&SECRET).unwrap());
    let ends = shake_hands(agent.agent_end().unwrap(), launcher.launcher_end().unwrap());
    assert_eq!(ends, (Ok(()), Ok(())));
}

#[test]
fn each_end_refuses_the_other_that_lacks_its_key() {
    let (ours, other) = (Key::new(&SECRET).unwrap(), Key::new(&[8; 32]).unwrap());
    let (_, at_launcher) = shake_hands(other.agent_end().unwrap(), ours.launcher_end().unwrap());
    assert_eq!(at_launcher, refused());
    // A launcher that takes any agent, and has a key of its own.
    let launcher = launcher_end(&other.launcher, &ours.agent).unwrap();
    let (at_agent, _) = shake_hands(ours.agent_end().unwrap(), launcher);
    assert_eq!(at_agent, refused());
    // An agent's key is none of a launcher's.
    let launcher = launcher_end(&ours.agent, &ours.agent).unwrap();
    let (at_agent, _) = shake_hands(ours.agent_end().unwrap(), launcher);
    assert_eq!(at_agent, refused());
}

#[test]
fn a_public_key_without_its_private_half_is_refused() {
    let (ours, other) = (Key::new(&SECRET).unwrap(), Key::new(&[8; 32]).unwrap());
    let forged = |public: &CertifiedKey, private: &CertifiedKey| {
        Arc::new(CertifiedKey::new(public.cert.clone(), Arc::clone(&private.key)))
    };
    let launcher = launcher_end(&forged(&ours.launcher, &other.launcher), &ours.agent).unwrap();
    let (at_agent, _) = shake_hands(ours.agent_end().unwrap(), launcher);
    assert_eq!(at_agent, Err(Error::InvalidCertificate(CertificateError::BadSignature)));
    let agent = agent_end(&forged(&ours.agent, &other.agent), &ours.launcher).unwrap();
    let (_, at_launcher) = shake_hands(agent, ours.launcher_end().unwrap());
    assert_eq!(at_launcher, Err(Error::InvalidCertificate(CertificateError::BadSignature)));
}

// SEMANTICS: J8
#[test]
fn a_key_is_long_enough_and_is_never_shown() {
    assert!(matches!(Key::new(&[7; 15]), Err(KeyError::Short(15))));
    assert_eq!(format!("{:?}", Key::new(&[7; 16]).unwrap()), "Key");
}
